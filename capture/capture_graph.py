"""Captures a graph that torch.compile passes to its backend: a functional ATen graph, and a canonical text of it.

Stored artifacts of such graphs are keyed by a hash of that text; torch's own guards decide when the graph is used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.format.records import AutogradRecord, GraphInput, GraphOutput, TensorConstant, Wrap
from precast.capture.aten.aot_autograd import aten_graph
from precast.capture.common.captured_frame import CaptureRefused
from precast.capture.graph.lift_constants import lift_constants
from precast.capture.graph.subclass_flatten import flat_inputs, positioned
from precast.capture.graph.symbolic_floats import float_positions

Decompositions = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True)
class CapturedGraph:
    """`graph` as in CapturedFrame. `identity`: equal texts mean equal graphs on equal inputs; a hash of it is their name in the store."""

    graph: torch.fx.GraphModule
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    constants: tuple[TensorConstant, ...]
    identity: str
    traced: torch.fx.GraphModule  # as torch traced it
    wraps: tuple[Wrap, ...] | None = None  # as in AotGraph
    backward: torch.fx.GraphModule | None = None
    autograd: AutogradRecord | None = None


def capture_graph(
    gm: torch.fx.GraphModule, example_inputs: list[Any], decompositions: Decompositions, memory: str = "default"
) -> CapturedGraph:
    """The ATen graph of a Dynamo graph, with its backward graph where eager would record one. `memory`: the option `activation_memory`.
    Raises CaptureRefused.

    Must run inside torch.compile's backend callback.
    """
    found = aten_graph(gm, example_inputs, decompositions, memory)
    if found.absolute:
        raise CaptureRefused("the graph counts offsets from the start of an input's storage (as_strided), which torch's guards do not pin")
    with _disable_current_modes():
        graph, constants = lift_constants(found.graph, len(found.parts or example_inputs))
    floats = float_positions(gm)
    inputs = [_input(i, value, found.parts is None and i in found.mutated, i in floats) for i, value in enumerate(example_inputs)]
    given = inputs
    if found.parts is not None:
        inputs = flat_inputs(inputs, found.parts, found.mutated)
    inputs += [GraphInput((("constant", i),), True, None, "constant") for i in range(len(constants))]
    wraps = None if found.wraps is None else positioned(found.wraps, given, found.meshes)
    text = identity(graph)
    parts = [text, *(repr(item) for item in (*inputs, *found.outputs)), *(repr(c) for c in constants), repr(wraps)]
    if found.backward is not None:
        parts += [identity(found.backward), repr(found.autograd)]
    return CapturedGraph(graph, tuple(inputs), found.outputs, constants, "\n".join(parts), gm, wraps, found.backward, found.autograd)


def _input(number: int, value: Any, mutated: bool, is_float: bool) -> GraphInput:
    """`is_float`: torch gives it as a tensor, of which the graph takes the number (`capture/graph/symbolic_floats.py`)."""
    kind: Any = "float" if is_float or isinstance(value, float | torch.SymFloat) else "tensor" if isinstance(value, torch.Tensor) else "int"
    return GraphInput((("input", number),), False, number, kind, mutated)


def identity(graph: torch.fx.GraphModule) -> str:
    """The canonical text: every node with its operator, operands and result, without names that differ between processes.

    Raises CaptureRefused for a node that has no such text.
    """
    return _Writer().module(graph)


@dataclass
class _Writer:
    """Numbers nodes and symbols in order of appearance."""

    symbols: dict[sympy.Symbol, sympy.Symbol] = field(default_factory=dict)

    def module(self, gm: torch.fx.GraphModule) -> str:
        names = {node: f"%{i}" for i, node in enumerate(gm.graph.nodes)}
        lines = []
        for node in gm.graph.nodes:
            args = ", ".join([self.value(a, names) for a in node.args] + [f"{k}={self.value(v, names)}" for k, v in node.kwargs.items()])
            lines.append(f"{names[node]} = {self.target(node, gm)}({args}) -> {self.meta(node.meta.get('val'))}")
        return "\n".join([*lines, *self.ranges(gm)])

    def target(self, node: torch.fx.Node, gm: torch.fx.GraphModule) -> str:
        if node.op in ("placeholder", "output"):
            return node.op
        if node.op == "get_attr":
            inner = operator.attrgetter(str(node.target))(gm)
            if isinstance(inner, torch.fx.GraphModule):
                return f"graph {digest(self.module(inner).encode())}"
            raise CaptureRefused(f"the graph holds a {type(inner).__name__}, which has no text to find it by")
        if isinstance(node.target, torch._ops.OpOverload):
            return str(node.target)
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return f"higher_order.{node.target}"
        if node.op == "call_function" and getattr(node.target, "__module__", "").startswith(("_operator", "math", "torch")):
            return f"{node.target.__module__}.{getattr(node.target, '__qualname__', node.target)}"
        raise CaptureRefused(f"the graph calls {node.target}, which is no operator that can be named in the store")

    def value(self, value: Any, names: Mapping[torch.fx.Node, str]) -> str:
        if isinstance(value, torch.fx.Node):
            return names[value]
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.value(v, names) for v in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k}: {self.value(v, names)}' for k, v in value.items())}}}"
        if isinstance(value, slice):
            return f"slice({', '.join(self.value(v, names) for v in (value.start, value.stop, value.step))})"
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, bool | int | float | complex | str | None | torch.dtype | torch.layout | torch.memory_format):
            return repr(value)
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.meta(value)
        raise CaptureRefused(f"the graph holds a {type(value).__name__} as an argument, which has no text to find it by")

    def meta(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return f"{value.dtype} {value.layout} {value.device.type} {self.sizes(value.shape)}"
            lazy = f"{'conj ' if value.is_conj() else ''}{'neg ' if value.is_neg() else ''}"
            return f"{lazy}{value.dtype} {value.device.type} {self.sizes(value.shape)} by {self.sizes(value.stride())}"
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            return self.expression(value.node.expr)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.meta(v) for v in value)}]"
        return repr(value) if isinstance(value, bool | int | float | None) else type(value).__name__

    def sizes(self, values: Any) -> str:
        return "x".join(self.meta(v) for v in values) or "scalar"

    def expression(self, expr: Any) -> str:
        """A symbolic size over symbols that are numbered in order of appearance: torch's own names follow the source code."""
        for symbol in sorted(getattr(expr, "free_symbols", ()), key=str):
            self.symbols.setdefault(symbol, sympy.Symbol(f"q{len(self.symbols)}", integer=True))  # type: ignore[no-untyped-call]
        return str(expr.xreplace(self.symbols)) if isinstance(expr, sympy.Basic) else repr(expr)  # type: ignore[no-untyped-call]

    def ranges(self, gm: torch.fx.GraphModule) -> list[str]:
        """What is known of each symbol's range."""
        for node in gm.graph.nodes:
            mode = getattr(node.meta.get("val"), "fake_mode", None)
            if mode is not None and mode.shape_env is not None:
                known = mode.shape_env.var_to_range
                return [f"{new} in {known[old]}" for old, new in self.symbols.items() if old in known]
        return []


__all__ = ["CapturedGraph", "capture_graph", "identity"]
