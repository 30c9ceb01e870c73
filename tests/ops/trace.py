"""Functional ATen graphs of table rows without the capture package, and the runners over lowering alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten


def trace(fn: Callable[..., Any], inputs: tuple[Any, ...], *, symbolic: bool = False) -> tuple[GraphModule, Callable[[list[Any]], Any]]:
    """The ATen graph of `fn` over the tensors in `inputs`, other leaves being constants; and what rebuilds fn's result.
    `symbolic`: sizes are symbols, guarded where the trace asks."""
    from precast.lowering.decompositions import DECOMPOSITIONS

    leaves, spec = tree_flatten(inputs)
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    seen: dict[str, Any] = {}

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            given[position] = tensor
        outputs, seen["spec"] = tree_flatten(fn(*tree_unflatten(given, spec)))
        seen["fixed"] = [None if isinstance(o, torch.Tensor) else (o,) for o in outputs]
        return [o for o in outputs if isinstance(o, torch.Tensor)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors = [leaves[i] for i in positions]
        graph = make_fx(functionalize(flat), tracing_mode="symbolic" if symbolic else "fake", decomposition_table=DECOMPOSITIONS)(*tensors)

    def rebuild(results: list[Any]) -> Any:
        produced = iter(results)
        return tree_unflatten([next(produced) if fixed is None else fixed[0] for fixed in seen["fixed"]], seen["spec"])

    return graph, rebuild


def tensors_of(inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensor leaves, in the order of the graph's placeholders."""
    return [leaf for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)]
