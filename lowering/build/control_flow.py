"""Branches and loops that depend on data, as extern calls: their bodies are libraries of their own, named by the node's `parts`."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from precast.lowering.build.builder import Builder
from precast.lowering.build.extern import Lookup, argument
from precast.lowering.ir.nodes import Extern
from precast.lowering.ir.sizes import Unsupported, sizes
from precast.lowering.ir.torch_dtypes import dtype_of

NAMES = ("cond", "while_loop", "scan", "map_impl", "print")


def is_control_flow(target: object) -> bool:
    """Whether this is a higher-order operator that this file lowers."""
    return isinstance(target, torch._ops.HigherOrderOperator) and target._name in NAMES


def is_body(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether the node only fetches a graph for such an operator."""
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return isinstance(value, fx.GraphModule)


def control_flow(b: Builder, node: fx.Node, lookup: Lookup) -> list[Any]:
    """Appends the call: descriptions of the bodies first, then the operands. Its results are new buffers."""
    parts = node.meta.get("parts")
    assert isinstance(node.target, torch._ops.HigherOrderOperator)
    name = node.target._name
    if node.target is torch.ops.higher_order.print:
        kwargs = tuple((k, argument(b, a, lookup)) for k, a in node.kwargs.items())
        b.steps.append(Extern("control::print", tuple(argument(b, a, lookup) for a in node.args), kwargs, (), (), (node.name,)))
        return []
    if not parts:
        raise Unsupported(f"{name} at {node.name} stands where its bodies were not compiled")
    operands = [a for a in node.args if not (isinstance(a, fx.Node) and a.op == "get_attr" and "val" not in a.meta)]
    args = tuple(argument(b, a, lookup) for a in operands)
    results: list[Any] = []
    outs: list[str] = []
    for value in node.meta["val"]:
        if not isinstance(value, torch.Tensor):
            raise Unsupported(f"{name} at {node.name} gives a {type(value).__name__}: only tensors can leave a branch or loop")
        made = b.whole(b.buffer(sizes(value.shape), dtype_of(value.dtype), sizes(value.stride()), str(value.dtype).removeprefix("torch.")))
        assert made.window is not None
        outs.append(made.window.buffer)
        b.written.add(made.window.buffer)
        results.append(made)
    b.steps.append(Extern(f"control::{name}", (*parts, *args), (), tuple(outs), (), (node.name,)))
    return results
