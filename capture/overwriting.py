"""In-place operators whose operand nobody reads afterwards, such as the `hidden += residual` of many networks: plain ones do as well."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

_PLAIN: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}


class SeenAgain(Exception):
    """What an in-place operator writes is seen otherwise than through its result, or its result is of another kind than its operand."""


class Functional(torch.fx.Interpreter):
    """Runs a graph with plain operators in the place of those that are in place. Raises SeenAgain where that makes a difference.

    What decides is the memory of the values as they are computed here: those that Dynamo noted may show other memory, since a dropout
    that is off has been taken out of the graph.
    """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The graph's results."""
        self._given = args
        return super().run(*args, **kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        """A node's value."""
        result = super().run_node(n)
        if is_in_place(n):
            operand = self.env[_operand(n)]
            ends = self.user_to_last_uses.get(n, [])
            kept = [value for node, value in self.env.items() if node not in ends]  # the others have been dropped
            if _look(result) != _look(operand) or memory_of(operand) in map(memory_of, tensors((kept, self._given))):
                raise SeenAgain
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, on operands as they are."""
        if kwargs.get("inplace") is True:
            kwargs = {**kwargs, "inplace": False}
        return super().call_function(_PLAIN.get(target, target), args, kwargs)


def is_in_place(node: torch.fx.Node) -> bool:
    """Whether a node is an operator of those that `Functional` replaces, on a tensor that the graph made."""
    if node.op != "call_function":
        return False
    if node.target not in _PLAIN and not (node.kwargs.get("inplace") is True and node.target.__module__ == "torch.nn.functional"):
        return False
    operand = _operand(node)
    return isinstance(operand, torch.fx.Node) and operand.op != "placeholder"


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, at any depth of lists and tuples."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value


def _operand(node: torch.fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _look(value: Any) -> Any:
    """What a tensor shows of its memory, and how much there is: `as_strided` reaches all of it."""
    if not isinstance(value, torch.Tensor):
        raise SeenAgain
    return value.dtype, value.shape, value.stride(), value.storage_offset(), value.untyped_storage().nbytes()


def memory_of(value: torch.Tensor) -> int:
    """The same number for tensors that share memory."""
    return int(value.untyped_storage()._cdata)
