"""`precast.explain`: the graphs of one call, where and why it breaks, and the operators and guards of each graph."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from precast.artifact_store import Store
from precast.capture import CapturedFrame, CaptureRefused, GraphBreak
from precast.compiling.observers import captures
from precast.runtime.api.compile import compile_with
from precast.runtime.common.errors import public
from precast.runtime.common.notebook import Shown
from precast.runtime.dispatch.callee_programs import forget_store
from precast.runtime.paths.paths import describe
from precast.runtime.programs.identity import Settings
from precast.runtime.programs.program import Program
from precast.runtime.settings.backends import Backend


@public
@dataclass(frozen=True)
class FrameReport(Shown):
    """One captured frame, in the order of capture.

    `ops`: the functions that the graph calls, by the tracer's names; empty without a graph. `broke`: why the frame ends before its function
    does. `refused`: why it is not compiled. `uncacheable`: why its artifact cannot be stored.
    """

    name: str
    ops: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    broke: GraphBreak | None = None
    refused: str = ""
    uncacheable: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.refused:
            return f"{self.name}: not compiled itself: {self.refused}"
        lines = [f"{self.name}: {len(self.ops)} ops, {len(self.guards)} guards"]
        if self.ops:
            lines.append(f"  ops: {', '.join(self.ops)}")
        if self.broke is not None:
            lines.append(f"  breaks: {self.broke.reason}")
            lines += [f"    at {line}" for line in reversed(self.broke.stack)]
            lines += [f"    hint: {self.broke.hint}"] if self.broke.hint else []
        return "\n".join([*lines, *(f"  cannot be stored: {reason}" for reason in self.uncacheable)])


@public
@dataclass(frozen=True)
class GraphReport(Shown):
    """The frames of one compiled call. `value`: what the call returned."""

    frames: tuple[FrameReport, ...]
    value: Any = field(default=None, compare=False, repr=False)

    @property
    def graphs(self) -> tuple[FrameReport, ...]:
        """The frames that compute something."""
        return tuple(frame for frame in self.frames if frame.ops)

    @property
    def breaks(self) -> tuple[GraphBreak, ...]:
        """All graph breaks, in the order of execution."""
        return tuple(frame.broke for frame in self.frames if frame.broke is not None)

    @property
    def ops(self) -> int:
        """Ops of all graphs."""
        return sum(len(frame.ops) for frame in self.frames)

    def __str__(self) -> str:
        head = f"{_count(len(self.graphs), 'graph')}, {_count(len(self.breaks), 'graph break')}, {_count(self.ops, 'op')}"
        return "\n".join([head, *map(str, self.frames)])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


class _Recorder:
    """Observes the captures of one call, and runs its graphs uncompiled."""

    def __init__(self) -> None:
        self.frames: list[FrameReport] = []
        self._ops: tuple[str, ...] = ()

    def backend(self, graph: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method", "call_module")]
        self._ops = tuple(_op_name(node.target) for node in calls)
        forward: Callable[..., Any] = graph.forward
        return forward

    def look(self, program: Program, outcome: CapturedFrame | CaptureRefused) -> None:
        ops, self._ops = self._ops, ()
        if isinstance(outcome, CaptureRefused):
            where = f"{outcome.where}: " if outcome.where else ""
            self.frames.append(FrameReport(program.name, refused=f"{where}{outcome.reason}"))
            return
        guards = tuple(f"{describe(guard.path)}: {guard.predicate.value}" for guard in outcome.guards)
        ops = ops if outcome.compiled is not None else ()
        self.frames.append(FrameReport(program.name, ops, guards, outcome.broke, uncacheable=outcome.uncacheable))


def _op_name(target: Any) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", target))


def explain_call(model: Any, options: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> GraphReport:
    """Run the call once, captured anew and with nothing stored, and report. `options`: all of precast's, with their values."""
    recorder = _Recorder()
    with captures.watch(recorder.look), tempfile.TemporaryDirectory() as folder:
        backend = Backend("explain", recorder.backend, quiet=True)
        store = Store.open(folder)
        try:
            value = compile_with(model, Settings({**options, "fullgraph": False}, store, backend=backend))(*args, **kwargs)
        finally:
            forget_store(store)
    return GraphReport(tuple(recorder.frames), value)


__all__ = ["FrameReport", "GraphReport", "explain_call"]
