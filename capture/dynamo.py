"""Dynamo: one Python frame -> rewritten bytecode, a graph, guards with their sources. torch 2.11 to 2.13.

The rewritten bytecode calls the graph with per-call inputs only: while Dynamo writes that call, `OutputGraph.graphargs` shows just these.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import random
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.fx
from torch._dynamo import config as dynamo_config
from torch._dynamo import convert_frame, exc
from torch._dynamo.codegen import PyCodegen
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource, TensorProperty, TensorPropertySource
from torch._dynamo.symbolic_convert import InliningInstructionTranslator
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._guards import CompileContext, compile_context
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError, GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from precast.artifact_store.guards import Path
from precast.capture.break_text import BY_DATA, known_by_data, shorten, user_stack
from precast.capture.code import graph_names
from precast.capture.constant_calls import ConstantCall, recorded_constants
from precast.capture.directives import tell_tracer
from precast.capture.dynamic import Dynamic, known_changes
from precast.capture.dynamo_gaps import guarded_gaps
from precast.capture.floats import is_float
from precast.capture.frame import CaptureRefused, GraphBreak, MarkViolated
from precast.capture.installed import installed
from precast.capture.installed_names import names_of_this_trace
from precast.capture.integers import larger_are_constants
from precast.capture.let_go import tensors_let_go
from precast.capture.operator_breaks import broken_at_operators
from precast.capture.resume import resume_functions
from precast.capture.shortcuts import shortcuts
from precast.capture.user_kernels import kernels_known
from precast.runtime.errors import RegionError
from precast.runtime.log import logger

Backend = Callable[[torch.fx.GraphModule, list[Any]], Any]

CONFIG: dict[str, Any] = {
    "record_runtime_overhead": False,
    "error_on_recompile": False,
    "suppress_errors": False,
}
_FORBIDDEN = "forbidden callable"
_RAISES = ("Observed exception", "TypeError when making fake tensor call")
"""Begin the tracer's words for code that seems to raise."""
"""What Dynamo says of a call that must not happen in traced code, such as `set_stance`."""


@dataclass(frozen=True)
class Traced:
    """What Dynamo made of a frame. `graphargs`: the graph's inputs as Dynamo describes them; None where no graph was made."""

    bytecode: types.CodeType
    output: OutputGraph
    graphargs: tuple[Any, ...] | None
    functions: tuple[types.FunctionType, ...]
    private_names: Mapping[str, tuple[Any, ...]]
    compared: Mapping[Any, int]  # sources of objects that the traced code asked `id()` of, and what it got
    consumed: tuple[Any, ...]  # sources of all objects that the traced code looked at, guarded or not
    broke: GraphBreak | None  # why it ends before its function does
    resumed: Mapping[str, tuple[types.CodeType, dict[str, Any]]]  # private name -> code and globals of what continues after a break
    constants: tuple[ConstantCall, ...]  # calls whose results the traced code takes as constant


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
    tell_tracer()
    namespace = function.__globals__
    graphs: list[tuple[Any, ...]] = []
    functions: dict[types.FunctionType, None] = {}
    compared: dict[Any, int] = {}
    consumed: dict[Any, None] = {}
    constants: list[ConstantCall] = []

    def call_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        graphs.append(tuple(n.meta["grapharg"] for n in gm.graph.nodes if n.op == "placeholder"))
        backend(gm, example_inputs)
        return gm.forward

    def called(name: str) -> Any:
        """The source of this name. The inner tensors of a subclass are described before they are looked at."""
        found = next((s for s in reversed(consumed) if s.name == name), None)
        base, _, attribute = name.rpartition(".")
        owner = called(base) if found is None and attribute.isidentifier() and base else None
        return found if owner is None else AttrSource(owner, attribute)

    def find(name: str, tx: Any) -> Path | None:
        source = called(name)
        return None if source is None else path_of(source, tx.output)

    with contextlib.ExitStack() as ending:
        ending.callback(random.setstate, random.getstate())
        ending.enter_context(tensors_let_go())
        ending.enter_context(names_of_this_trace(namespace))
        with (
            shortcuts(),
            _recorded_inlining(functions),
            _recorded_ids(compared),
            _recorded_reads(consumed),
            recorded_constants(constants),
            guarded_gaps(),
            _per_call_arguments(is_bound),
            known_changes(dynamic, find),
            larger_are_constants(),
            broken_at_operators(),
            kernels_known(),
        ):
            out = _compile(function, local_values, call_backend, one_graph, dynamic, finished, raises)
        output = out.tracer_output.output_graph
        assert output is not None
        names = _private_names(out.bytecode, namespace, output)
        broke = _graph_break(output)
        if broke is not None:
            _log_break(function, output.compile_subgraph_reason, broke)
        resumed = resume_functions(output, namespace)
        if not graph_names(out.bytecode, names):
            graphs.clear()
    graphargs = graphs[-1] if graphs else None
    return Traced(out.bytecode, output, graphargs, tuple(functions), names, compared, tuple(consumed), broke, resumed, tuple(constants))


def _log_break(function: types.FunctionType, reason: Any, broke: GraphBreak) -> None:
    log = logger("graph_breaks")
    if log.isEnabledFor(logging.INFO):
        frame = reason.user_stack[-1] if reason.user_stack else None
        where = f"{frame.filename}:{frame.lineno}" if frame is not None else "an unknown place"
        why = str(reason.reason).strip().splitlines()
        log.info("%s: the graph ends at %s: %s", function.__qualname__, where, broke.reason)
        for line in why[1:] if log.isEnabledFor(logging.DEBUG) else ():
            log.debug("%s:   %s", function.__qualname__, line)


def _compile(
    function: types.FunctionType,
    local_values: dict[str, Any],
    backend: Backend,
    one_graph: bool,
    dynamic: Dynamic,
    finished: Callable[[OutputGraph], None] | None,
    raises: bool,
) -> Any:
    state = torch._dynamo.convert_frame.torch_function_mode_stack_state_mgr  # type: ignore[attr-defined]
    try:
        with (
            dynamo_config.patch({k: v for k, v in {**CONFIG, **dynamic.config()}.items() if hasattr(dynamo_config, k)}),
            compile_context(CompileContext(convert_frame.get_compile_id({}))),
            get_metrics_context(),
            dynamo_timed("precast.capture"),
            state,
            torch._dynamo.error_on_graph_break(raises),
        ):
            out = convert_frame.compile_frame(
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
            if finished is not None and out.tracer_output.output_graph is not None:
                finished(out.tracer_output.output_graph)
            return out
    except ConstraintViolationError as error:
        raise MarkViolated(str(error), _where(error, function)) from error
    except exc.SkipFrame as error:
        raise CaptureRefused(f"there is nothing to compile: {_first_line(error)}", _where(error, function), skipped=True) from error
    except (exc.Unsupported, exc.UserError, exc.UncapturedHigherOrderOpError, exc.CondOpArgsMismatchError) as error:
        what, hint = shorten(str(error) or type(error).__name__)
        hint = hint or "rewrite that line, or mark the call with precast.disable"
        refused = CaptureRefused(what, _where(error, function), hint, skipped=not one_graph)
        traced = getattr(error, "_torch_dynamo_tracer_output", None)
        refused.forbidden = not one_graph and (raises if traced is None else traced.error_on_graph_break)
        refused.raises = what.startswith(_RAISES)
        raise refused from error
    except exc.TorchRuntimeError as error:  # an operator does not take these sizes, or not in torch's simulation of it
        what, _ = shorten(str(error))
        refused = CaptureRefused(what, _where(error, function))
        refused.raises = True
        raise refused from error
    except PendingUnbackedSymbolNotFound as error:
        what = f"torch's tracer loses a size that depends on data: {_first_line(error)}"
        raise CaptureRefused(what, _where(error, function), "call that operator outside of the one graph", skipped=not one_graph) from error
    except AssertionError as error:
        if _FORBIDDEN in str(error):
            raise RegionError(f"{_first_line(error)} ({_where(error, function)}): it cannot be called inside a compiled program") from error
        raise
    except AttributeError as error:
        if traceback.extract_tb(error.__traceback__)[-1].name != "__tensor_flatten__":
            raise
        what = f"a tensor subclass is traced before its attributes are set: {_first_line(error)}"
        raise CaptureRefused(what, _where(error, function), skipped=not one_graph) from error
    except exc.BackendCompilerFailed as error:
        inner = error.inner_exception
        if isinstance(inner, CaptureRefused):
            raise CaptureRefused(inner.reason, inner.where or _where(error, function), inner.hint) from inner
        if isinstance(inner, GuardOnDataDependentSymNode):
            raise CaptureRefused(*known_by_data(inner), hint=BY_DATA) from inner
        raise inner from error


def _graph_break(output: OutputGraph) -> GraphBreak | None:
    reason = output.compile_subgraph_reason
    if reason is None or not reason.graph_break:
        return None
    return GraphBreak(*shorten(reason.reason), user_stack(reason.user_stack))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _where(error: Exception, function: types.FunctionType) -> str:
    stack = getattr(error, "real_stack", None)
    if stack:
        return f"{stack[-1].filename}:{stack[-1].lineno}"
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


@contextlib.contextmanager
def _recorded_inlining(functions: dict[types.FunctionType, None]) -> Iterator[None]:
    """Notes every function that Dynamo inlines (its list of code objects alone has no module names)."""
    original = InliningInstructionTranslator.check_inlineable

    def check_inlineable(func: Any) -> Any:
        result = original(func)
        with contextlib.suppress(NotImplementedError, AttributeError, AssertionError):
            found = func.get_function()
            if isinstance(found, types.FunctionType):
                functions[found] = None
        return result

    with mock.patch.object(InliningInstructionTranslator, "check_inlineable", staticmethod(check_inlineable)):
        yield


_original_call_id = BuiltinVariable.call_id
_recording: list[
    dict[Any, int]
] = []  # the innermost capture's record; not a closure, since Dynamo keeps handlers, and with them the wrapper, for good


def _call_id(self: BuiltinVariable, tx: Any, *args: Any) -> Any:
    source = getattr(args[0], "source", None) if len(args) == 1 and _recording else None
    pinned = source is not None and any(g.originating_source == source and g.create_fn_name() == "ID_MATCH" for g in tx.output.guards)
    result: Any = _original_call_id(self, tx, *args)
    if source is not None and not pinned and isinstance(getattr(result, "value", None), int):
        _recording[-1][source] = result.value
    return result


@contextlib.contextmanager
def _recorded_ids(compared: dict[Any, int]) -> Iterator[None]:
    """Notes the objects whose `id()` the traced code takes (as `copy.deepcopy` does): Dynamo pins them, though only comparisons matter."""
    _recording.append(compared)
    try:
        with mock.patch.object(BuiltinVariable, "call_id", _call_id):
            yield
    finally:
        _recording.pop()


@contextlib.contextmanager
def _recorded_reads(consumed: dict[Any, None]) -> Iterator[None]:
    """Notes the source of every object that the traced code looked at: Dynamo guards most of them, but no method descriptors."""
    original = VariableBuilder._wrap

    def _wrap(self: VariableBuilder, value: Any) -> Any:
        if self.source is not None:
            consumed[self.source] = None
        return original(self, value)

    with mock.patch.object(VariableBuilder, "_wrap", _wrap):
        yield


_PROPERTIES = {TensorProperty.SIZE: "size", TensorProperty.STRIDE: "stride", TensorProperty.STORAGE_OFFSET: "offset"}


def read_off(argument: Any, every: Sequence[Any]) -> tuple[Any, ...] | None:
    """Where a number among the graph's inputs is read, if it is a property of a tensor that is an input too (GraphInput.read)."""
    source = argument.source
    if not isinstance(source, TensorPropertySource):
        return None
    k = next((i for i, other in enumerate(every) if other.is_tensor and other.source == source.base), None)
    if k is None:
        return None
    return (_PROPERTIES[source.prop], k) if source.idx is None else (_PROPERTIES[source.prop], k, source.idx)


@contextlib.contextmanager
def _per_call_arguments(is_bound: Callable[[Any], bool]) -> Iterator[None]:
    graphargs: Any = OutputGraph.graphargs
    original = PyCodegen.make_call_generated_code

    def make_call_generated_code(self: PyCodegen, fn_name: str) -> None:
        every = graphargs.fget(self.tx.output)
        kept = [_as_it_is(a) for a in every if not is_bound(a.source) and read_off(a, every) is None]
        with mock.patch.object(OutputGraph, "graphargs", property(lambda _: kept)):
            original(self, fn_name)

    with mock.patch.object(PyCodegen, "make_call_generated_code", make_call_generated_code):
        yield


def _as_it_is(argument: Any) -> Any:
    return replace(argument, pass_arg_as_tensor=False) if is_float(argument) else argument


def alias_paths(output: OutputGraph, namespace: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Global names that Dynamo installed -> what they stand for, as supplies of a FrameRecord.

    ("scope", id): the namespace of code that was made by `exec` (namedtuple methods, for one); only guards may refer to it.
    """
    found: dict[str, tuple[Any, ...]] = {}
    for alias, module in output.import_sources.items():
        found[alias] = ("shims" if module.startswith("torch._dynamo") else "module", module)
    for name in output.installed_globals:
        value = namespace.get(name)
        if name.startswith("__builtins_dict__"):
            found[name] = ("builtins",)
        elif name.startswith("__compiled_fn_"):
            found[name] = ("graph",)
        elif name.startswith("___unnamed_scope"):
            found[name] = ("scope", id(value))
        elif isinstance(value, types.ModuleType):
            found[name] = ("shims" if value.__name__.startswith("torch._dynamo") else "module", value.__name__)
    return found


def _private_names(code: types.CodeType, namespace: Mapping[str, Any], output: OutputGraph) -> dict[str, tuple[Any, ...]]:
    found = alias_paths(output, namespace)
    for name in output.installed_globals:
        if name not in found:
            found[name] = installed(name, namespace.get(name))
    return found
