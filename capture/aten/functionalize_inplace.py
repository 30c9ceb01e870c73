"""Functionalises in-place operators on whole tensors (`hidden += residual`, a decoder's cache): the out-of-place operator runs instead, and
later readers of the operand get its result.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten
_PLAIN: dict[Any, Callable[..., Any]] = {
    operator.iadd: operator.add,
    operator.isub: operator.sub,
    operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}
_ROOTS = "add sub mul div addcmul addcdiv clamp clamp_min clamp_max masked_fill relu sigmoid tanh exp neg index_copy index_add index_fill "
_METHODS: dict[str, Callable[..., Any]] = {f"{name}_": getattr(torch.Tensor, name) for name in (_ROOTS + "scatter scatter_add").split()}
_METHODS |= {"copy_": aten.copy, "fill_": aten.fill}


class SeenAgain(Exception):
    """An in-place operator cannot be replaced: what it writes is visible through another view as well, or its result has another layout or
    dtype than its operand."""


class Functional(torch.fx.Interpreter):
    """Interprets a graph with out-of-place operators in place of the in-place ones. Raises SeenAgain where that would make a difference.

    Aliasing is judged by the values computed here, not by Dynamo's fake values: those may alias other memory, since a dropout that is off
    has been removed from the graph.
    """

    given: list[Any]
    """The arguments; for one that the graph writes, its final value."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The graph's results, by out-of-place operators."""
        self.given = list(args)
        self._memory = Counter(map(memory_of, tensors(self.given)))  # counted once: a decoder has hundreds of arguments, and writes dozens
        return super().run(*args, **kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        """A node's value."""
        result = super().run_node(n)
        if not is_in_place(n):
            return result
        self._put(result, self.env[_operand(n)], self.user_to_last_uses.get(n, []))
        return None if n.target is operator.setitem else result

    def _put(self, result: Any, operand: Any, ends: list[torch.fx.Node]) -> None:
        """Replaces `operand` by `result` wherever it is used later. Raises SeenAgain where other live values alias it. `ends`: nodes that
        are not read again.
        """
        if _look(result) != _look(operand):
            raise SeenAgain
        places = [i for i, value in enumerate(self.given) if value is operand]
        made = [(node, value) for node, value in self.env.items() if node.op != "placeholder" and node not in ends]
        others = [value for _, value in made if value is not operand]
        if self._memory[memory_of(operand)] > len(places) or len(places) > 1 or memory_of(operand) in map(memory_of, tensors(others)):
            raise SeenAgain
        self.env.update((node, result) for node, value in self.env.items() if value is operand)
        for i in places:
            self._memory.subtract([memory_of(operand)])
            self._memory.update([memory_of(result)])
            self.given[i] = result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, on operands as they are."""
        if target is operator.setitem:
            return _with_items(*args)
        if kwargs.get("inplace") is True:
            kwargs = {**kwargs, "inplace": False}
        return super().call_function(_PLAIN.get(target, target), args, kwargs)

    def call_method(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call, on operands as they are."""
        plain = _METHODS.get(target)
        return super().call_method(target, args, kwargs) if plain is None else plain(*args, **kwargs)


def is_in_place(node: torch.fx.Node) -> bool:
    """Whether a node is an operator of those that `Functional` replaces."""
    if not isinstance(_operand(node), torch.fx.Node):
        return False
    if node.op == "call_method":
        return node.target in _METHODS
    if node.op != "call_function":
        return False
    if node.target is operator.setitem:
        return True
    return node.target in _PLAIN or (node.kwargs.get("inplace") is True and node.target.__module__ == "torch.nn.functional")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in a value, at any depth of lists and tuples."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, torch.Tensor):
        yield value


def _operand(node: torch.fx.Node) -> Any:
    return node.args[0] if node.args else node.kwargs.get("input")


def _with_items(target: Any, index: Any, value: Any) -> Any:
    """The value of `target` after `target[index] = value`, where that is one operator: rows selected by tensors of integers."""
    places = index if isinstance(index, tuple) else (index,)
    picked = [place for place in places if isinstance(place, torch.Tensor)]
    simple = all(isinstance(place, torch.Tensor) or place == slice(None) for place in places)
    if not simple or not picked or any(p.dtype not in (torch.int64, torch.int32) for p in picked):
        raise SeenAgain
    if len(places) > 1 and not all(p.ndim for p in picked):
        raise SeenAgain  # Python's indexing selects there, before the others pick
    if not isinstance(value, torch.Tensor) or (value.dtype, value.device) != (target.dtype, target.device):
        raise SeenAgain
    if value.ndim > target.ndim - len(picked) + max(p.ndim for p in picked):
        raise SeenAgain  # assignment takes off leading dimensions of size 1, the operator does not
    return aten.index_put(target, [place if isinstance(place, torch.Tensor) else None for place in places], value)


def _look(value: Any) -> Any:
    """A tensor's dtype, size, stride and offset, and the bytes of its storage, all of which `as_strided` can reach."""
    if not isinstance(value, torch.Tensor):
        raise SeenAgain
    return value.dtype, value.shape, value.stride(), value.storage_offset(), value.untyped_storage().nbytes()


def memory_of(value: torch.Tensor) -> int:
    """The identity of a tensor's storage."""
    return int(value.untyped_storage()._cdata)
