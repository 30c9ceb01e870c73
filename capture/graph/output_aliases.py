"""Output aliasing: how each value that the caller gets is made: a raw output, a view of an input or of a raw output, or a number."""

from __future__ import annotations

import operator
import sys
from typing import Any

import torch
import torch.fx

from precast.artifact_store.format.expressions import Expression
from precast.artifact_store.format.records import GraphOutput
from precast.capture.adapters.aot_autograd import OutputType
from precast.capture.adapters.fake_tensors import GuardOnDataDependentSymNode
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.common.source_paths import NotPortable
from precast.capture.common.symbolic_shapes import SymbolTable
from precast.capture.graph.storage_aliases import is_strided, reach, shared_storages, shown_storage


class Outputs:
    """The graph's outputs by position, and the raw outputs that they are made from."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
        self.graph = graph
        self.inputs = inputs  # the graph's own ones are detached
        self.placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self.symbols = SymbolTable([n.meta.get("val") for n in self.placeholders])
        self.raw: list[torch.fx.Node] = []
        self.bases: dict[int, torch.fx.Node] = {}

    def split(self, metadata: Any, views_elsewhere: bool) -> tuple[GraphOutput, ...]:
        """One GraphOutput per position, and one more where the code leaves the grad mode changed; the graph returns the raw outputs only.

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

    def of_values(self, values: list[Any]) -> tuple[GraphOutput, ...]:
        """One GraphOutput per value, an input among them given back as it is; the graph returns the raw outputs only."""
        self.bases = shared_storages(values)
        made = tuple(
            GraphOutput("input", self.placeholders.index(v)) if isinstance(v, torch.fx.Node) and v.op == "placeholder" else self._own(v)
            for v in values
        )
        output_node = next(n for n in reversed(self.graph.graph.nodes) if n.op == "output")
        output_node.args = (tuple(self.raw),)
        output_node.meta.pop("desc", None)
        return made

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
        """A number: computed from the inputs where that is possible, otherwise returned by the graph."""
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
        """Whether the number depends on a data-dependent storage offset."""
        places = {str(n.meta["val"].storage_offset()) for n in self.graph.graph.nodes if is_strided(n)}
        return any(str(symbol) in places for symbol in number.node.expr.free_symbols)

    def _raw_index(self, node: torch.fx.Node) -> int:
        if node not in self.raw:
            self.raw.append(node)
        return self.raw.index(node)

    def _window(
        self, view: torch.Tensor, base: torch.Tensor
    ) -> tuple[tuple[Expression, ...], tuple[Expression, ...], Expression, str | None]:
        """A view's size, stride, offset from the base's first element, and its dtype where that differs from the base's."""
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
        """The expression of a data-dependent number: the start or length of a slice or selection, or a number that the graph returns. (A
        storage offset cannot be returned: the graph may compute the tensor in other memory.)
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
        """The storage offset of a slice or selection, by Python's rules for its start."""
        base, dim, position, _, _ = _slice_arguments(node)
        size, stride, offset = map(self._integer, (base.shape[dim], base.stride(dim), base.storage_offset()))
        first = self._place(position, size) if node.target is torch.ops.aten.slice.Tensor else ("place", self._at(position), size, dim)
        return ("+", offset, ("*", stride, first))

    def _length(self, node: torch.fx.Node) -> Expression:
        """The length of a slice."""
        base, dim, start, end, step = _slice_arguments(node)
        size = self._integer(base.shape[dim])
        span = ("max", ("-", self._place(end, size), self._place(start, size)), 0)
        return ("//", ("+", span, step - 1), step)

    def _place(self, position: Any, size: Expression) -> Expression:
        """The start or end of a slice as a position: negative ones count from the end, and all are clamped to the size."""
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
            # A mutated input's new value may have other strides: views are replayed on a fake tensor with the input's layout.
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
        if window[-1] is not None and self.inputs[info.base_idx].requires_grad and info.requires_grad:
            # the runtime sets its storage, of which autograd knows nothing
            raise CaptureRefused(
                "a result that records gradients is a view of an input in another dtype", hint="return a copy (clone()) of it"
            )
        return GraphOutput("view", info.base_idx, *window, detach=self.inputs[info.base_idx].requires_grad and not info.requires_grad)


_OFFSETS = (torch.ops.aten.sym_storage_offset.default, torch.ops.aten.sym_storage_offset)


def _slice_arguments(node: torch.fx.Node) -> tuple[torch.Tensor, int, Any, Any, int]:
    """The operand of a slice or selection, its dimension, start, end (of no meaning for a selection) and step."""
    given: list[Any] = list(node.args)
    given += [0, None, None, 1][len(given) - 1 :]
    x, dim, start, end, step = given
    assert isinstance(x, torch.fx.Node) and isinstance(dim, int) and isinstance(step, int)
    return x.meta["val"], dim, 0 if start is None else start, sys.maxsize if end is None else end, step


def _viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The base of a chain of views."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    return node


def _strides(node: torch.fx.Node) -> list[str]:
    return [str(stride) for stride in node.meta["val"].stride()]


def _is_symbolic(value: torch.Tensor) -> bool:
    return any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset()))


def _holds(condition: Any) -> bool:
    """Whether a condition on sizes holds; for symbolic sizes it becomes a guard unless it always holds."""
    try:
        return bool(condition)
    except GuardOnDataDependentSymNode as error:
        raise _by_data() from error


def _lies_within(value: torch.fx.Node, base: torch.fx.Node) -> bool:
    """Whether a view stays within the memory of its base. A view at a data-dependent position was checked when it was made."""
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
