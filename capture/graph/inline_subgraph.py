"""Inlines a subgraph: replaces one node of an ATen graph by the operators that a Python function runs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from precast.capture.adapters.fake_tensors import make_fx
from precast.capture.common.captured_frame import CaptureRefused


def splice(
    module: torch.fx.GraphModule, node: torch.fx.Node, function: Callable[..., Any], fake_mode: Any, decompositions: Mapping[Any, Any]
) -> None:
    """Trace `function(*node.args, **node.kwargs)` on the node's own fake values and replace the node by the traced operators.

    Graph modules among the arguments are passed unchanged. Nodes that replace a result keep its fake values, so that aliasing of outputs is
    seen as before. Raises CaptureRefused where a result is used in a way that a graph cannot express.
    """
    leaves, spec = pytree.tree_flatten((node.args, node.kwargs))
    leaves = [_attribute(module, leaf) for leaf in leaves]
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]

    def flat(*values: Any) -> Any:
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return function(*args, **kwargs)

    with fake_mode:
        traced = make_fx(flat, decomposition_table=dict(decompositions))(*(leaves[i].meta["val"] for i in places))
    results = _copy(module, traced, node, [leaves[i] for i in places])
    _replace(module, node, results)


def _attribute(module: torch.fx.GraphModule, leaf: Any) -> Any:
    """The graph module in place of the node that fetches it; other leaves unchanged."""
    if isinstance(leaf, torch.fx.Node) and leaf.op == "get_attr":
        found = module.get_submodule(str(leaf.target)) if "val" not in leaf.meta else leaf
        return found
    return leaf


def _copy(module: torch.fx.GraphModule, traced: torch.fx.GraphModule, before: torch.fx.Node, operands: list[torch.fx.Node]) -> Any:
    """Copies the traced ops in front of `before`; the traced results in terms of the new nodes."""
    known: dict[torch.fx.Node, torch.fx.Node] = {}
    given = iter(operands)
    with module.graph.inserting_before(before):
        for old in traced.graph.nodes:
            if old.op == "placeholder":
                known[old] = next(given)
            elif old.op == "output":
                return torch.fx.map_arg(old.args[0], known.__getitem__)
            else:
                known[old] = module.graph.node_copy(old, known.__getitem__)
                if old.op == "get_attr":
                    known[old].target = _adopt(module, traced, str(old.target))
    raise AssertionError("a traced graph ends with its output")


def _adopt(module: torch.fx.GraphModule, traced: torch.fx.GraphModule, name: str) -> str:
    """Moves the attribute `name` of the traced module to a free name of `module`."""
    value: Any = traced
    for part in name.split("."):
        value = getattr(value, part)
    stem, number = name.replace(".", "_"), 0
    while hasattr(module, f"{stem}_{number}"):
        number += 1
    setattr(module, f"{stem}_{number}", value)
    return f"{stem}_{number}"


def _replace(module: torch.fx.GraphModule, node: torch.fx.Node, result: Any) -> None:
    if isinstance(result, list | tuple):
        for user in list(node.users):
            if user.op != "call_function" or len(user.args) != 2 or not isinstance(user.args[1], int):
                raise CaptureRefused(f"the results of {node.target} are used as a whole by {user.target}")
            _replace(module, user, result[user.args[1]])
    elif isinstance(result, torch.fx.Node):
        if result.op == "placeholder" and "val" in node.meta:
            with module.graph.inserting_before(node):  # a result that is an operand must be a new tensor, as the operator's would be
                result = module.graph.call_function(torch.ops.aten.clone.default, (result,))
        if "val" in node.meta:
            result.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            user.args = torch.fx.map_arg(user.args, lambda n: result if n is node else n)
            user.kwargs = torch.fx.map_arg(user.kwargs, lambda n: result if n is node else n)
    module.graph.erase_node(node)
