"""What a captured graph is compiled for: decided by the devices of its tensors and the target that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from precast.runtime.common.errors import Refused
from precast.runtime.targets.ladder import rules_of
from precast.target_registry import HOST_DEVICE, Family, families, family_of, family_on, load


def target_of(graph: torch.fx.GraphModule | None, requested: str) -> str:
    """The target of `graph` (None: a frame that computes no tensor) under the resolved option `requested`. Raises Refused.

    A graph with a tensor on a GPU is for the requested GPU target, or for the device that the tensors are on. Without one it is for the
    requested CPU, or, where a program is built for a GPU, for one that most machines with GPUs have. What a graph makes on the meta
    device has no memory to compute in.
    """
    devices = {tensor.device for tensor in _tensors(graph)}
    family = family_on(device.type for device in devices)
    own = sorted({device.index or 0 for device in devices if family is not None and device.type == family.device})
    others = sorted({device.type for device in devices} - {HOST_DEVICE, family.device if family is not None else HOST_DEVICE})
    if others:
        raise Refused(f"its tensors are on {' and '.join(others)}", f"precast compiles for {_and(f.devices for f in families())}")
    asked = family_of(requested)
    if family is None:
        return requested if asked.on_host else rules_of(requested).beside()
    if len(own) > 1:
        names = ", ".join(f"{family.device}:{index}" for index in own)
        raise Refused(f"one graph works on several GPUs ({names})", "compile the part that runs on each of them")
    return requested if asked == family else load(family.runtime).target_for(torch.device(family.device, own[0]))


def likely_family(arguments: Any, requested: str) -> Family:
    """The family that the graphs of a call with these arguments are probably for, said before they are captured."""
    asked = family_of(requested)
    if not asked.on_host:
        return asked
    return family_on(leaf.device.type for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)) or asked


def _and(names: Iterable[str]) -> str:
    *rest, last = dict.fromkeys(names)
    return f"{', '.join(rest)} and {last}" if rest else last


def _tensors(graph: torch.fx.GraphModule | None) -> Iterator[torch.Tensor]:
    """Every tensor value in the graph and in the bodies of its branches and loops."""
    modules = () if graph is None else [m for m in graph.modules() if isinstance(m, torch.fx.GraphModule)]
    for module in modules:
        for node in module.graph.nodes:
            yield from _leaves(node.meta.get("val"))


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)


__all__ = ["likely_family", "target_of"]
