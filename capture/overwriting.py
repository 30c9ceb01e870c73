"""In-place operators whose operand nobody reads afterwards, such as the `hidden += residual` of many networks: plain ones do as well."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

_PLAIN: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


class Functional(torch.fx.Interpreter):
    """Runs a graph with plain operators in the place of those that `writes_nothing_read_later` allows to write."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, on operands as they are."""
        if kwargs.get("inplace") is True:
            kwargs = {**kwargs, "inplace": False}
        return super().call_function(_PLAIN.get(target, target), args, kwargs)


def is_in_place(node: torch.fx.Node) -> bool:
    """Whether a node is an operator of those that `Functional` replaces."""
    return node.op == "call_function" and (node.target in _PLAIN or node.kwargs.get("inplace") is True)


def writes_nothing_read_later(graph: torch.fx.Graph, is_pure: Callable[[torch.fx.Node], bool]) -> bool:
    """Whether each node of Dynamo's graph is pure, or writes memory that the graph made itself and that nothing reads later but through
    the node's result, of the same type and size as the operand."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    showing: dict[int, list[torch.fx.Node]] = {}
    for node in graph.nodes:
        value = node.meta.get("example_value")
        if is_in_place(node):
            if not _keeps_its_kind(node) or not _is_last_reader(node, showing.get(_memory(node.args[0]), []), position):
                return False
        elif not is_pure(node):
            return False
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                showing.setdefault(int(tensor.untyped_storage()._cdata), []).append(node)
    return True


def _memory(operand: Any) -> int:
    return int(operand.meta["example_value"].untyped_storage()._cdata)


def _keeps_its_kind(node: torch.fx.Node) -> bool:
    """Whether the plain operator gives what the operand can hold: floats of one type, the operand the larger one."""
    x, *others = [v.meta.get("example_value") if isinstance(v, torch.fx.Node) else v for v in node.args]
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided or not x.is_floating_point():
        return False
    if node.target not in _PLAIN:
        return True
    (y,) = others
    if isinstance(y, torch.Tensor):
        return y.dtype == x.dtype  # its size fits: Dynamo ran it
    return type(y) in (int, float)


def _is_last_reader(node: torch.fx.Node, showing: list[torch.fx.Node], position: dict[torch.fx.Node, int]) -> bool:
    """`showing`: the nodes before that show the memory which `node` writes."""
    if not showing or any(n.op == "placeholder" for n in showing):
        return False
    return all(position[user] <= position[node] for n in showing for user in n.users)
