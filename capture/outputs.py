"""What the caller gets of a graph: raw outputs, views of inputs and of one another, numbers."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
import torch.fx

from precast.artifact_store.expressions import Expression
from precast.artifact_store.records import GraphOutput
from precast.capture.adapters.aot_autograd import OutputType
from precast.capture.adapters.fake_tensors import GuardOnDataDependentSymNode
from precast.capture.frame import CaptureRefused
from precast.capture.sources import NotPortable
from precast.capture.storages import is_strided, reach, shared_storages, shown_storage
from precast.capture.symbols import SymbolTable


class Outputs:
    """What the caller gets per position, and the raw outputs that it is made from."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
        self.graph = graph
        self.inputs = inputs  # the graph's own ones are detached
        self.placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.symbols = SymbolTable([n.meta.get("val") for n in self.placeholders])
        self.raw: list[torch.fx.Node] = []
        self.bases: dict[int, torch.fx.Node] = {}

    def split(self, metadata: Any, views_elsewhere: bool) -> tuple[GraphOutput, ...]:
        """One GraphOutput per position, and one more where the code leaves the grad mode changed; the graph keeps the raw outputs only.

        `views_elsewhere`: the code takes views of inputs that require gradients under another grad mode than the caller's.
        """
        output_node = next(n for n in reversed(self.graph.graph.nodes) if n.op == "output")
        values = list(output_node.args[0])[: len(metadata.output_info)]
        self.bases = shared_storages([v for v, info in zip(values, metadata.output_info, strict=True) if not _is_input_alias(info)])
        outputs = []
        for value, info in zip(values, metadata.output_info, strict=True):
            if info.output_type is OutputType.is_input:
                outputs.append(GraphOutput("input", info.base_idx))
            elif info.output_type is OutputType.alias_of_input:
                outputs.append(self._input_view(value, info))
            else:
                outputs.append(self._own(value))
        if views_elsewhere and any(o.kind == "view" and o.index is not None and self.inputs[o.index].requires_grad for o in outputs):
            # its history is that of the mode in which it was taken, which the graph does not say
            raise CaptureRefused("the traced code changes torch's grad mode and gives back a view of an input that requires gradients")
        if metadata.grad_enabled_mutation is not None:
            outputs.append(GraphOutput("grad_mode", value=bool(metadata.grad_enabled_mutation)))
        output_node.args = (tuple(self.raw),)
        output_node.meta.pop("desc", None)
        return tuple(outputs)

    def _own(self, value: Any) -> GraphOutput:
        if value is None:
            return GraphOutput("none")
        if not isinstance(value, torch.fx.Node):
            return GraphOutput("int", value=value)
        if isinstance(value.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._number(value)
        base = self.bases.get(shown_storage(value)) if is_strided(value) else None
        if base is not None and base is not value and _lies_within(value, base):
            window = self._window(value.meta["val"], base.meta["val"])
            if base.op == "placeholder":
                return GraphOutput("view", self.placeholders.index(base), *window)
            return GraphOutput("output_view", self._raw_index(base), *window)
        return GraphOutput("raw", self._raw_index(value))

    def _number(self, node: torch.fx.Node) -> GraphOutput:
        """From the inputs where it can be computed from them; else the graph gives it back."""
        number = node.meta["val"]
        try:
            return GraphOutput("int", value=self.symbols.expression(number))
        except NotPortable:
            if not isinstance(number, torch.SymInt):
                raise CaptureRefused("the graph gives back a number that depends on data and is no integer") from None
            if self._counts_from_storage(number):
                return GraphOutput("int", value=self._integer(number))
            return GraphOutput("int", self._raw_index(node))

    def _counts_from_storage(self, number: torch.SymInt) -> bool:
        """Whether it is made of a storage offset that depends on data."""
        places = {str(n.meta["val"].storage_offset()) for n in self.graph.graph.nodes if is_strided(n)}
        return any(str(symbol) in places for symbol in number.node.expr.free_symbols)

    def _raw_index(self, node: torch.fx.Node) -> int:
        if node not in self.raw:
            self.raw.append(node)
        return self.raw.index(node)

    def _window(
        self, view: torch.Tensor, base: torch.Tensor
    ) -> tuple[tuple[Expression, ...], tuple[Expression, ...], Expression, str | None]:
        """Size, stride, offset from the base's first element, and the dtype where it differs."""
        start = view.storage_offset() * view.element_size() - base.storage_offset() * base.element_size()
        if not _holds(start % view.element_size() == 0):
            raise CaptureRefused("an output reinterprets an input's bytes at an unaligned offset")
        dtype = None if view.dtype == base.dtype else str(view.dtype).removeprefix("torch.")
        if view.is_conj() != base.is_conj() or view.is_neg() != base.is_neg():
            raise CaptureRefused("an output is a lazily conjugated or negated view of another tensor", hint="call resolve_conj() on it")
        size, stride = tuple(map(self._integer, view.shape)), tuple(map(self._integer, view.stride()))
        return size, stride, self._integer(start // view.element_size()), dtype

    def _integer(self, size: Any) -> Expression:
        try:
            return self.symbols.expression(size, self._found)
        except NotPortable as error:
            raise _by_data() from error

    def _found(self, name: str) -> Expression:
        """A number that depends on data: where a slice or a selection at such a number begins and how long it is, or one that the graph
        gives back. (It cannot give back a storage offset: what it computes may lie in other memory.)
        """
        for node in self.graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt) and _is_symbol(value, name) and node.target not in _OFFSETS:
                return ("raw", self._raw_index(node))
            if node.target not in (torch.ops.aten.slice.Tensor, torch.ops.aten.select.int) or not is_strided(node):
                continue
            if _is_symbol(value.storage_offset(), name):
                return self._beginning(node)
            if node.target is torch.ops.aten.slice.Tensor and _is_symbol(value.shape[_slice_arguments(node)[1]], name):
                return self._length(node)
        raise NotPortable(f"the number {name} depends on data")

    def _beginning(self, node: torch.fx.Node) -> Expression:
        """The storage offset of a slice or a selection: Python's meaning of where it starts."""
        base, dim, position, _, _ = _slice_arguments(node)
        size, stride, offset = map(self._integer, (base.shape[dim], base.stride(dim), base.storage_offset()))
        first = self._place(position, size) if node.target is torch.ops.aten.slice.Tensor else ("place", self._at(position), size, dim)
        return ("+", offset, ("*", stride, first))

    def _length(self, node: torch.fx.Node) -> Expression:
        """How many positions a slice takes."""
        base, dim, start, end, step = _slice_arguments(node)
        size = self._integer(base.shape[dim])
        span = ("max", ("-", self._place(end, size), self._place(start, size)), 0)
        return ("//", ("+", span, step - 1), step)

    def _place(self, position: Any, size: Expression) -> Expression:
        """Where a slice starts or ends: negative positions count from the end, and none lies outside."""
        at = self._at(position)
        return ("min", ("max", ("if", ("<", at, 0), ("+", at, size), at), 0), size)

    def _at(self, position: Any) -> Expression:
        return self._integer(position.meta["val"] if isinstance(position, torch.fx.Node) else position)

    def _input_view(self, value: torch.fx.Node, info: Any) -> GraphOutput:
        base = self.placeholders[info.base_idx].meta["val"]
        view = value.meta["val"]
        stand_in = base
        sequence = getattr(info.view_meta_sequence, "sequence", None)
        if sequence and any(meta.has_symbolic_inputs for meta in sequence):
            viewed = _viewed(value)
            if viewed is not self.placeholders[info.base_idx] and _strides(viewed) != _strides(self.placeholders[info.base_idx]):
                raise CaptureRefused(
                    "a result is a view, of a size that varies, of an input that is written and does not lie as what it becomes",
                    hint="return a copy (clone()) of that view",
                )
        if sequence and not any(meta.has_symbolic_inputs for meta in sequence):
            # A mutated input's new value may be laid out otherwise than the input: the views are replayed on a stand-in for the input.
            if not _is_symbolic(base):
                stand_in = torch.empty(0, dtype=base.dtype, device="meta").set_(
                    torch.empty(base.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage(),
                    base.storage_offset(),
                    base.shape,
                    base.stride(),
                )
            try:
                view = torch._C._functionalization.apply_view_meta_sequence(stand_in, sequence)
            except RuntimeError as error:  # through a conjugate, say: no window of the input's memory
                raise CaptureRefused(f"a result is a view of an input that cannot be made again: {str(error).splitlines()[0]}") from error
        window = self._window(view, stand_in)
        return GraphOutput("view", info.base_idx, *window, detach=self.inputs[info.base_idx].requires_grad and not info.requires_grad)


_OFFSETS = (torch.ops.aten.sym_storage_offset.default, torch.ops.aten.sym_storage_offset)


def _slice_arguments(node: torch.fx.Node) -> tuple[torch.Tensor, int, Any, Any, int]:
    """What a slice or a selection is taken of: the dimension, where it starts, where it ends (of a selection: nothing), its step."""
    given: list[Any] = list(node.args)
    given += [0, None, None, 1][len(given) - 1 :]
    x, dim, start, end, step = given
    assert isinstance(x, torch.fx.Node) and isinstance(dim, int) and isinstance(step, int)
    return x.meta["val"], dim, 0 if start is None else start, sys.maxsize if end is None else end, step


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """What a chain of views was taken of."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _strides(node: torch.fx.Node) -> list[str]:
    return [str(stride) for stride in node.meta["val"].stride()]


def _is_symbolic(value: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _holds(condition: Any) -> bool:
    """A condition on sizes; one on symbols becomes a guard where it is not always so."""
    try:
        return bool(condition)
    except GuardOnDataDependentSymNode as error:
        raise _by_data() from error


def _lies_within(value: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Whether a tensor shows nothing beyond what the owner of its storage shows. A view that data places was checked when taken."""
    try:
        return bool(reach(value) <= reach(base))
    except GuardOnDataDependentSymNode as error:
        if base.target is operator.getitem:  # a part of a split: the others lie beyond it
            raise _by_data() from error
        return True


def _by_data() -> CaptureRefused:
    return CaptureRefused("the size or place of an output depends on data", hint="return a copy (clone()) of that view")


def _is_symbol(number: Any, name: str) -> bool:
    return isinstance(number, torch.SymInt) and str(number.node.expr) == name


def _is_input_alias(info: Any) -> bool:
    return info.output_type in (OutputType.is_input, OutputType.alias_of_input)


__all__ = ["Outputs"]
