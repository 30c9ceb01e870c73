"""What a captured graph is compiled for: decided by the devices of its tensors and the target that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from precast.runtime.errors import Refused
from precast.runtime.targets import PORTABLE_CPU, is_cuda, native_cuda


def target_of(graph: torch.fx.GraphModule | None, requested: str) -> str:
    """The target of `graph` (None: a frame that computes no tensor) under the resolved option `requested`. Raises Refused.

    A graph with a tensor on a GPU is for the requested GPU target, or for the device that the tensors are on. Without one it is for the
    requested CPU, or, where a program is built for a GPU, for one that most machines with GPUs have. What a graph makes on the meta
    device has no memory to compute in.
    """
    devices = {tensor.device for tensor in _tensors(graph)}
    gpus = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    others = sorted({device.type for device in devices} - {"cuda", "cpu"})
    if others:
        raise Refused(f"its tensors are on {' and '.join(others)}", "precast compiles for CPUs and NVIDIA GPUs")
    if not gpus:
        return PORTABLE_CPU if is_cuda(requested) else requested
    if len(gpus) > 1:
        raise Refused(
            f"one graph works on several GPUs (cuda:{', cuda:'.join(map(str, gpus))})", "compile the part that runs on each of them"
        )
    return requested if is_cuda(requested) else _at_hand(gpus[0])


def has_cuda(arguments: Any) -> bool:
    """Whether a call's arguments contain a tensor on a GPU, so that its graphs are likely to be compiled for one."""
    return any(isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in tree_leaves(arguments))


def _at_hand(index: int) -> str:
    """The best target of the GPU with that index."""
    if torch.version.cuda is None or index >= torch.cuda.device_count():
        raise Refused("its tensors are on a GPU that this machine does not have", 'say what to compile for: targets=["cuda:sm_90"]')
    capability = torch.cuda.get_device_capability(index)
    found = native_cuda(capability)
    if not found:
        raise Refused(f"its tensors are on a GPU of compute capability {capability[0]}.{capability[1]}", "precast needs 8.0 or newer")
    return found


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


__all__ = ["has_cuda", "target_of"]
