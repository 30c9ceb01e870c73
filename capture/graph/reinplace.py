"""Reinplacing: operators that write their arguments, which functionalization has wrapped, write in place again, with as few copies as
possible.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.fx

from precast.capture.adapters.higher_order_ops import auto_functionalized_dense, auto_functionalized_v2_dense, get_mutable_args
from precast.capture.graph.inline_subgraph import splice
from precast.capture.graph.window_overlap import strided_storage
from precast.runtime.paths.fake_tensors import storage_of

V1 = torch.ops.higher_order.auto_functionalized
V2 = torch.ops.higher_order.auto_functionalized_v2


def unwrap_mutation(module: torch.fx.GraphModule, node: torch.fx.Node, fake_mode: Any, decompositions: Mapping[Any, Any]) -> None:
    """Replaces `auto_functionalized(op, …)` by copies of the arguments that the op writes, and the op itself on these copies.

    An argument that is not read afterwards is not copied, nor an input to which the result is copied back (`copy_(input, result)` follows).
    """
    if node.target is V1:
        names, _ = get_mutable_args(node.args[0])  # type: ignore[arg-type]
        written = [node.kwargs[name] for name in names]
        kept = [name for name, value in zip(names, written, strict=True) if not may_write(node, value, None)]
        splice(module, node, lambda op, **kwargs: auto_functionalized_dense(op, tuple(kept), **kwargs), fake_mode, decompositions)
        return
    bases: Any = node.kwargs.get("_all_bases", ())
    copied = tuple(i for i, base in enumerate(bases) if not may_write(node, base, _new_base(node, len(bases), i)))
    splice(module, node, lambda op, **kwargs: auto_functionalized_v2_dense(op, copied, **kwargs), fake_mode, decompositions)


def may_write(node: torch.fx.Node, base: Any, result: torch.fx.Node | None) -> bool:
    """Whether the op may write `base` itself. `result`: the node of its value after the op."""
    if not isinstance(base, torch.fx.Node) or base.op == "get_attr" or not isinstance(base.meta.get("val"), torch.Tensor):
        return False
    storage = storage_of(base.meta["val"])
    family = [n for n in node.graph.nodes if strided_storage(n.meta.get("val")) == storage]
    if any(n in family and n is not base for n in node.all_input_nodes):
        return False  # another argument shows the same memory
    order = {n: i for i, n in enumerate(node.graph.nodes)}
    later = {user for n in family for user in n.users if order[user] > order[node]}
    roots = [n for n in family if n.op == "placeholder"]
    if not roots:
        return not later and not any(n.op == "get_attr" for n in family)
    return roots == [base] and result is not None and only_copied_back(later, base, result)


def _new_base(node: torch.fx.Node, bases: int, number: int) -> torch.fx.Node | None:
    """The node of base `number` after the op: the bases are the last results."""
    op = node.args[0]
    assert isinstance(op, torch._ops.OpOverload)
    position = max(len(op._schema.returns), 1) + number
    found = [u for u in node.users if u.target is operator.getitem and u.args[1] == position]
    return found[0] if len(found) == 1 else None


def only_copied_back(later: set[torch.fx.Node], base: torch.fx.Node, result: torch.fx.Node) -> bool:
    """Whether the only later use is the copy of the result back into `base`."""
    copies = [n for n in later if n.target is torch.ops.aten.copy_.default and n.args[0] is base]
    return len(later) == 1 and len(copies) == 1 and copies[0].args[1] is result and not copies[0].users
