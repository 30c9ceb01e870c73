"""Dynamo: one Python frame -> rewritten bytecode, a graph, guards with their sources. torch 2.11 to 2.15."""

from __future__ import annotations

import builtins
import contextlib
import logging
import random
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from precast.artifact_store.format.guards import Path
from precast.capture.adapters.dynamo import (
    FUNCTION_MODES_ARE_KEPT,
    OutputGraph,
    convert_frame,
    dynamo_timed,
    error_on_graph_break,
    get_metrics_context,
)
from precast.capture.adapters.dynamo import config as dynamo_config
from precast.capture.adapters.guards import CompileContext, compile_context
from precast.capture.bytecode.frame_record import graph_names
from precast.capture.bytecode.installed_globals import private_names
from precast.capture.bytecode.resume_functions import resume_functions
from precast.capture.common.captured_frame import GraphBreak
from precast.capture.common.patching import applied
from precast.capture.dynamo.break_reasons import shorten, user_stack
from precast.capture.dynamo.dynamic_shapes import Dynamic
from precast.capture.dynamo.errors import refusals
from precast.capture.dynamo.patches import PATCHES, Tracing
from precast.capture.dynamo.trace_record import TraceRecord
from precast.capture.soundness.tensor_metadata import marked
from precast.runtime.common.log import logger

Backend = Callable[[torch.fx.GraphModule, list[Any]], Any]

CONFIG: dict[str, Any] = {
    "record_runtime_overhead": False,
    "error_on_recompile": False,
    "suppress_errors": False,
    "skip_guards_on_constant_func_defaults": False,  # torch 2.11 takes the defaults of functions for constants of the process
}


@dataclass(frozen=True)
class Traced:
    """What Dynamo made of a frame. `graphargs`: the graph's inputs as Dynamo describes them; None where no graph was made."""

    bytecode: types.CodeType
    output: OutputGraph
    graphargs: tuple[Any, ...] | None
    record: TraceRecord
    private_names: Mapping[str, tuple[Any, ...]]
    broke: GraphBreak | None  # why it ends before its function does
    resumed: Mapping[str, tuple[types.CodeType, dict[str, Any]]]  # private name -> code and globals of what continues after a break


def trace(
    function: types.FunctionType,
    local_values: dict[str, Any],
    backend: Backend,
    is_bound: Callable[[Any], bool],
    dynamic: Dynamic,
    path_of: Callable[[Any, OutputGraph], Path | None],
    one_graph: bool = True,
    finished: Callable[[OutputGraph], None] | None = None,
    raises: bool = False,
) -> Traced:
    """Run Dynamo over one frame. `backend` gets the graph and its example inputs; `is_bound`: does this source stay out of the call?
    `path_of`: the path of a source, while tracing goes on.
    `raises`: a graph break is an error, where the traced code does not say otherwise (`error_on_graph_break`).
    `finished` is shown the result while the frame's names and torch's state are still those of the trace.

    Where `one_graph` is not asked for, the frame may end at a graph break, and its bytecode calls what resumes it.
    Nothing that Dynamo put into the function's module globals is left there. Raises CaptureRefused.
    """
    namespace, record = function.__globals__, TraceRecord()
    graphs: list[tuple[Any, ...]] = []

    @marked
    def call_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        graphs.append(tuple(n.meta["grapharg"] for n in gm.graph.nodes if n.op == "placeholder"))
        backend(gm, example_inputs)
        return gm.forward

    def find(name: str, tx: Any) -> Path | None:
        source = record.source(name)
        return None if source is None else path_of(source, tx.output)

    tracing = Tracing(namespace, record, dynamic, is_bound, find)
    with contextlib.ExitStack() as ending:
        ending.callback(random.setstate, random.getstate())
        ending.enter_context(applied(PATCHES, tracing))
        with refusals(function, one_graph, raises), _settings(dynamic, raises):
            out = _compile(function, local_values, call_backend, one_graph)
            output = out.tracer_output.output_graph
            assert output is not None
            if finished is not None:
                finished(output)
        names = private_names(namespace, output)
        resumed = resume_functions(output, namespace)
    calls_graph = graphs and graph_names(out.bytecode, names)
    return Traced(out.bytecode, output, graphs[-1] if calls_graph else None, record, names, _graph_break(function, output), resumed)


@contextlib.contextmanager
def _settings(dynamic: Dynamic, raises: bool) -> Iterator[None]:
    """Dynamo's, and what it expects around it."""
    manager: Any = convert_frame.torch_function_mode_stack_state_mgr  # type: ignore[attr-defined]
    modes = contextlib.nullcontext() if FUNCTION_MODES_ARE_KEPT else manager
    with (
        dynamo_config.patch({k: v for k, v in {**CONFIG, **dynamic.config()}.items() if hasattr(dynamo_config, k)}),
        compile_context(CompileContext(convert_frame.get_compile_id({}))),
        get_metrics_context(),
        dynamo_timed("precast.capture"),
        modes,
        error_on_graph_break(raises),
    ):
        yield


def _compile(function: types.FunctionType, local_values: dict[str, Any], backend: Backend, one_graph: bool) -> Any:
    return convert_frame.compile_frame(
        function.__code__,
        function.__globals__,
        local_values,
        builtins.__dict__,
        function.__closure__ or (),  # type: ignore[arg-type]
        backend,
        one_graph=one_graph,
        restart_reasons=set(),
        frame_state={},
    )


def _graph_break(function: types.FunctionType, output: OutputGraph) -> GraphBreak | None:
    reason = output.compile_subgraph_reason
    if reason is None or not reason.graph_break:
        return None
    broke = GraphBreak(*shorten(reason.reason), user_stack(reason.user_stack))
    _log_break(function, reason, broke)
    return broke


def _log_break(function: types.FunctionType, reason: Any, broke: GraphBreak) -> None:
    log = logger("graph_breaks")
    if log.isEnabledFor(logging.INFO):
        frame = reason.user_stack[-1] if reason.user_stack else None
        where = f"{frame.filename}:{frame.lineno}" if frame is not None else "an unknown place"
        why = str(reason.reason).strip().splitlines()
        log.info("%s: the graph ends at %s: %s", function.__qualname__, where, broke.reason)
        for line in why[1:] if log.isEnabledFor(logging.DEBUG) else ():
            log.debug("%s:   %s", function.__qualname__, line)
