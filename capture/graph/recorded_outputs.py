"""Outputs of graphs that record gradients: which are results of the forward graph, which are views that are made anew on these, and what
the forward graph keeps for the backward graph.

AOTAutograd's forward graph gives (values that mutated inputs get, the caller's outputs, bases of outputs that are views, saved tensors,
saved integers). What shares memory is found by walking views back, not by the storages of fake tensors: the partitioner has replaced equal
nodes by one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from precast.artifact_store.format.expressions import Expression
from precast.artifact_store.format.records import GraphOutput
from precast.capture.adapters.aot_autograd import OutputType
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.graph.output_aliases import Outputs

_OF_INTERMEDIATES = (OutputType.alias_of_intermediate, OutputType.alias_of_intermediate_save_as_output)
_CLONE = torch.ops.aten.clone.default


def is_view(node: torch.fx.Node) -> bool:
    """Whether it is a view of its first argument, or a part of what such an operator gives."""
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        return is_view(node.args[0])
    return isinstance(node.target, torch._ops.OpOverload) and (
        node.target.is_view or node.target.namespace == "prims" and _aliases(node.target)
    )


def _aliases(operator_: torch._ops.OpOverload) -> bool:
    return any(a.alias_info is not None and not a.alias_info.is_write for a in operator_._schema.arguments)


def viewed(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose memory it shows: itself, unless it is a view."""
    while is_view(node):
        source = node.args[0]
        assert isinstance(source, torch.fx.Node)
        node = source
    return node


class RecordedOutputs(Outputs):
    """The outputs of a forward graph: `results`, whether gradients flow into each of its first raw outputs; then what is saved."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> None:
        super().__init__(graph, inputs)
        self.end = next(n for n in reversed(graph.graph.nodes) if n.op == "output")
        self.results: list[bool] = []
        self.tangents: list[int] = []
        """Raw outputs whose gradients the backward graph takes, in its order."""
        self.copied: dict[torch.fx.Node, torch.fx.Node] = {}
        """What is saved as a copy, which lies in memory in another way -> the copy."""

    def record(self, metadata: Any, views_elsewhere: bool) -> tuple[tuple[GraphOutput, ...], tuple[tuple[int, int, bool], ...]]:
        """What the caller gets, and what inputs get after the call (`AutogradRecord.written`)."""
        values = list(self.end.args[0])
        written_at = list(metadata.mutated_inp_runtime_indices)
        count = len(metadata.output_info)
        news, outs = values[: len(written_at)], values[len(written_at) : len(written_at) + count]
        bases = values[len(written_at) + count : len(written_at) + count + metadata.num_intermediate_bases]
        written = []
        for index, value in zip(written_at, news, strict=True):
            info = metadata.input_info[index]
            recorded = info.mutates_data and info.requires_grad
            made = self._result(value, recorded, taken=recorded)
            written.append((index, made, bool(info.mutations_hidden_from_autograd)))
        own: dict[int, int] = {}
        for i, (value, info) in enumerate(zip(outs, metadata.output_info, strict=True)):
            if is_own(info) and isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
                recorded = info.requires_grad and value.meta["val"].dtype.is_floating_point | value.meta["val"].dtype.is_complex
                own[i] = self._result(value, bool(recorded), taken=takes_tangent(info))
        first = len(self.raw)
        for value in bases:
            self._result(value, True, taken=True)
        made_outputs = []
        for i, (value, info) in enumerate(zip(outs, metadata.output_info, strict=True)):
            if i in own:
                made_outputs.append(GraphOutput("raw", own[i]))
            elif info.output_type is OutputType.is_input:
                made_outputs.append(GraphOutput("input", info.base_idx))
            elif info.output_type is OutputType.alias_of_input:
                if views_elsewhere and self.inputs[info.base_idx].requires_grad:
                    raise CaptureRefused(
                        "the traced code changes torch's grad mode and gives back a view of an input that requires gradients"
                    )
                made_outputs.append(self._input_view(value, info))
            elif info.output_type in _OF_INTERMEDIATES:
                made_outputs.append(self._view_of(value, bases[info.base_idx], first + info.base_idx, info))
            elif info.output_type is OutputType.alias_of_intermediate_base_is_user_output:
                made_outputs.append(self._view_of(value, outs[info.base_idx], own[info.base_idx], info))
            else:
                made_outputs.append(self._own(value))
        self.results += [False] * (len(self.raw) - len(self.results))  # numbers
        if not torch.is_grad_enabled() and any(map(self._is_recorded_view, made_outputs)):
            # its history is that of the mode in which it was taken, which the graph does not say
            raise CaptureRefused("a call under no_grad gives back a view of what its code records gradients for")
        if metadata.grad_enabled_mutation is not None:
            made_outputs.append(GraphOutput("grad_mode", value=bool(metadata.grad_enabled_mutation)))
        return tuple(made_outputs), tuple(written)

    def _is_recorded_view(self, output: GraphOutput) -> bool:
        if output.index is None or output.detach:
            return False
        return (
            output.kind == "output_view" and self.results[output.index] or output.kind == "view" and self.inputs[output.index].requires_grad
        )

    def keep(self, tensors: Sequence[torch.fx.Node], mutated: frozenset[int]) -> tuple[tuple[str, int], ...]:
        """Where the saved tensors come from, each distinct and no view of another (`AutogradRecord.saved`). `mutated`: inputs that get
        other values, of which copies are kept."""
        found = []
        for node in tensors:
            if node.op == "placeholder" and (index := self.placeholders.index(node)) not in mutated:
                found.append(("input", index))
            elif node.op == "placeholder":
                with self.graph.graph.inserting_after(self.placeholders[-1]):
                    self.copied[node] = self._clone(node)
                found.append(("raw", self._raw_index(self.copied[node])))
            elif node in self.raw:
                found.append(("raw", self.raw.index(node)))
            else:
                if any(viewed(node) is viewed(other) for other in (*self.raw, *self.placeholders)):
                    with self.graph.graph.inserting_before(self.end):
                        self.copied[node] = self._clone(node)
                found.append(("raw", self._raw_index(self.copied.get(node, node))))
        return tuple(found)

    def number(self, node: torch.fx.Node) -> Expression:
        """A saved integer, or a float of the call."""
        value = node.meta.get("val")
        if isinstance(value, torch.SymFloat) and node.op == "placeholder":
            return ("int", self.placeholders.index(node))
        if not isinstance(value, torch.SymInt | int):
            refused = CaptureRefused(f"the backward graph needs a {type(value).__name__} of the forward graph")
            refused.symbols = isinstance(value, torch.SymFloat)
            raise refused
        return self._integer(value)

    def finish(self) -> None:
        """The graph gives the raw outputs."""
        self.end.args = (tuple(self.raw),)
        self.end.meta.pop("desc", None)

    def _result(self, value: torch.fx.Node, recorded: bool, taken: bool) -> int:
        """The raw output of a result, in memory of its own."""
        if any(viewed(value) is viewed(other) for other in (*self.raw, *self.placeholders)):
            with self.graph.graph.inserting_before(self.end):
                value = self._clone(value)
        self.raw.append(value)
        self.results.append(recorded)
        if taken:
            self.tangents.append(len(self.raw) - 1)
        return len(self.raw) - 1

    def _clone(self, node: torch.fx.Node) -> torch.fx.Node:
        made = self.graph.graph.call_function(_CLONE, (node,))
        with node.meta["val"].fake_mode:
            made.meta["val"] = torch.clone(node.meta["val"]).detach()
        return made

    def _view_of(self, value: torch.fx.Node, base: torch.fx.Node, index: int, info: Any) -> GraphOutput:
        window = self._window(value.meta["val"], base.meta["val"])
        if window[-1] is not None and info.requires_grad:
            raise CaptureRefused("a result that records gradients is a view of another dtype", hint="return a copy (clone()) of it")
        return GraphOutput("output_view", index, *window, detach=self.results[index] and not info.requires_grad)


def is_own(info: Any) -> bool:
    return info.output_type in (OutputType.non_alias, OutputType.unsafe_view_alias, OutputType.custom_function_view)


def takes_tangent(info: Any) -> bool:
    return bool(getattr(info, "requires_grad_for_backward", info.requires_grad)) and issubclass(info.raw_type, torch.Tensor)


__all__ = ["RecordedOutputs", "is_own", "is_view", "takes_tangent", "viewed"]
