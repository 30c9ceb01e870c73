"""`capture`: one call of a Python callable -> a CapturedFrame."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from precast.artifact_store.format.guards import Guard, Path, Predicate, canonical_order
from precast.artifact_store.format.records import CodeDigest, FrameRecord, GraphInput, GraphOutput, TensorConstant, Wrap
from precast.capture.adapters.dtensors import is_dtensor, is_mesh
from precast.capture.adapters.guards import RandomValueSource
from precast.capture.aten import aot_autograd
from precast.capture.aten.decompositions import default_decompositions
from precast.capture.aten.reject_meta_tensors import refusal_of_dataless
from precast.capture.backends import run_backend
from precast.capture.bytecode.frame_record import digests, frame_record, integers
from precast.capture.common.captured_frame import CapturedFrame, CaptureRefused
from precast.capture.common.missing_names import missing_names_refused
from precast.capture.common.patching import applied
from precast.capture.common.source_paths import NotPortable, SourceContext
from precast.capture.common.symbolic_shapes import explained, shape_guards
from precast.capture.dynamo import trace as dynamo
from precast.capture.dynamo.assumed_constants import constant_digests
from precast.capture.dynamo.dynamic_shapes import Dynamic
from precast.capture.dynamo.patches import AROUND
from precast.capture.dynamo.per_call_inputs import read_off
from precast.capture.dynamo.trace_record import TraceRecord
from precast.capture.gc_pause import seldom_collected
from precast.capture.graph.lift_constants import lift_constants
from precast.capture.graph.subclass_flatten import attribute_set, flat_inputs, objects_of, positioned
from precast.capture.graph.symbolic_floats import finite, is_float
from precast.capture.guards.class_attributes import resolution_guards
from precast.capture.guards.filters import GuardFilter, describe_waived, of_memory, waived_guards
from precast.capture.guards.identity import identity_guards
from precast.capture.guards.implicit_guards import aliasing_guards, apart, device_guards, state_guard, whole_tensors
from precast.capture.guards.lookup_guards import with_lookups
from precast.capture.guards.met_objects import attribute_paths, cell_paths, met_paths, refusal_of_shared_attributes
from precast.capture.guards.missing_guards import unguarded
from precast.capture.guards.torch_versions import newest_forms
from precast.capture.guards.translate import GuardContext, from_dynamo, translate
from precast.capture.provenance.operator_use import OperatorUse, watched
from precast.capture.soundness import exec_namespaces
from precast.capture.soundness.wide_integers import within_64_bits
from precast.runtime.frames import lambda_lift
from precast.runtime.frames.entry import LocalsOf, entry_of, has_own_namespace
from precast.runtime.guards.evaluate import failure
from precast.runtime.paths.paths import CLOSURE, NAMESPACE, PathError, describe

GENERATORS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


@dataclass(frozen=True)
class CaptureOptions:
    """`decompositions`: ATen overload -> decomposition, applied while the graph is traced; None: `default_decompositions()`.

    `one_graph`: refuse what cannot be captured whole; otherwise the frame ends at the first graph break and names what resumes it.
    `guard_filter`: shown torch's guard entries, says which guards to keep.
    `free_as_locals`: paths find the contents of the function's free variables among the locals.
    `raises`: a graph break is an error, where the traced code does not say otherwise; the refusal is then `forbidden`.
    `trace`: shown Dynamo's graph before anything is made of it.
    `backend`: gets Dynamo's graph and its example inputs, in place of precast's own lowering.
    `dynamic`: which sizes and numbers are symbolic.
    `memory`: how dear memory between a forward and a backward graph is (the option `activation_memory`).
    """

    decompositions: Mapping[Any, Any] | None = None
    one_graph: bool = True
    free_as_locals: bool = False
    backend: Callable[..., Any] | None = None
    guard_filter: GuardFilter | None = None
    raises: bool = False
    trace: Callable[[torch.fx.GraphModule], None] | None = None
    dynamic: Dynamic = Dynamic()
    memory: str = "default"


def capture(
    fn: Any,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    options: CaptureOptions | None = None,
) -> CapturedFrame:
    """Trace one call of `fn` without running it. Nothing of the process is changed.

    `fn`: a function, bound method, closure, `functools.partial`, `nn.Module` or object with `__call__`. Sizes are specialised unless
    `options.dynamic` says otherwise. Raises CaptureRefused where the call is no single graph, MarkViolated where a dimension that was
    marked as dynamic is not, TypeError where the arguments do not fit the signature.
    """
    entry = entry_of(called(fn))
    locals_of = LocalsOf(entry.function)
    local_values = locals_of((*entry.prefix, *args), {**entry.keywords, **(kwargs or {})}) | locals_of.cells()
    chosen = options or CaptureOptions()
    if chosen.free_as_locals and CLOSURE in local_values:
        local_values[lambda_lift.CLOSURE] = local_values.pop(CLOSURE)  # what the program's calls bring the cells as
    with missing_names_refused(), seldom_collected(), applied(AROUND, None):
        return _Capture(entry.function, local_values, name or entry.function.__qualname__, chosen).run()


def called(fn: Any) -> Any:
    """A module with hooks is captured through `__call__`, which runs them; any other module is its `forward`."""
    if not isinstance(fn, torch.nn.Module):
        return fn
    own = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    shared = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
    hooked = any(getattr(fn, h) for h in own) or any(getattr(torch.nn.modules.module, h) for h in shared)
    own_call = type(fn).__call__ is not torch.nn.Module.__call__
    return fn._call_impl if hooked and not own_call else fn.__call__ if own_call else fn


@dataclass(frozen=True)
class _Needs:
    """What has to hold of a call: guards, why not all can be stored, which cannot be checked, digests of code that they check.

    `met`: paths of all that the traced code looked at. `told_apart`: of constants that it asked whether they are one.
    """

    guards: list[Guard]
    met: list[Path]
    told_apart: list[Path]
    problems: list[str]
    unchecked: list[str]
    codes: list[str]


@dataclass
class _Capture:
    function: types.FunctionType
    local_values: dict[str, Any]
    name: str
    options: CaptureOptions
    graph: aot_autograd.AotGraph | None = None
    compiled: Callable[..., Any] | None = None
    aliases: dict[str, Path] = field(default_factory=dict)
    waived: tuple[Any, ...] = ()
    refused: CaptureRefused | None = None
    wraps: tuple[Wrap, ...] | None = None
    objects: tuple[GraphInput, ...] = ()
    operators: OperatorUse = field(default_factory=OperatorUse)

    def run(self) -> CapturedFrame:
        self.module = None if has_own_namespace(self.function) else self.function.__globals__["__name__"]
        self.records = torch.is_grad_enabled()
        free = frozenset() if self.options.free_as_locals else frozenset(self.function.__code__.co_freevars)
        self.sources = SourceContext(self.module, self.aliases, self.local_values, free)
        state = state_guard()
        if state.constant["functorch"]:
            raise CaptureRefused(
                "the call runs under a functorch transform (vmap, grad …)", hint="compile the function that contains the transform"
            )
        if self.function.__code__.co_flags & GENERATORS:
            raise CaptureRefused(
                "a generator or coroutine function runs later than it is called", hint="compile the functions that it calls"
            )
        traced = self._trace()
        if traced.graphargs is None:
            self.graph = self.compiled = None
        needs = self._needs(traced)
        found, missing = self._digests(traced, needs.codes)
        inputs = self._inputs(traced.graphargs or ())
        graph, constants = (None, ()) if self.graph is None else lift_constants(self.graph.graph, len(inputs))
        inputs += [GraphInput((("constant", i),), True, None, "constant") for i in range(len(constants))]
        record, unportable = self._record(traced, constants)
        problems = [*needs.problems, *missing, *unportable]
        if self.refused is not None:
            identity = identity_guards(needs.met, needs.guards, self.sources)
            raise self._refusal(self.refused, [*needs.guards, *identity, state], problems, inputs)
        guards = self._all_guards(needs, state, inputs, record)
        problems += [f"guard {text} at capture itself" for guard in guards if (text := failure(guard, self.local_values))]
        return CapturedFrame(
            self.name,
            canonical_order(guards),
            tuple(problems),
            tuple(needs.unchecked),
            found,
            record,
            graph,
            tuple(inputs),
            self._outputs(),
            waived=describe_waived(self.waived, self.sources),
            broke=traced.broke,
            symbols=explained(traced.output, self.sources),
            compiled=self.compiled,
            wraps=self.wraps,
            objects=self.objects,
            backward=self.graph.backward if self.graph is not None else None,
            autograd=self.graph.autograd if self.graph is not None else None,
        )

    def _trace(self) -> dynamo.Traced:
        """Dynamo's part: its guards, the rewritten bytecode, and (through `_backend`) the graph."""
        traced = dynamo.trace(
            self.function,
            {name: value for name, value in self.local_values.items() if name not in (NAMESPACE, CLOSURE, lambda_lift.CLOSURE)},
            self._backend,
            self._is_bound,
            self.options.dynamic,
            self._path_while_tracing,
            self.options.one_graph,
            self._ask_filter,
            self.options.raises,
        )
        if name := attribute_set(traced.output):
            self.refused = CaptureRefused(f"the traced code sets the attribute {name} of a tensor subclass with its own dispatch")
        self._note_aliases(traced.private_names, traced.record)
        self._keep_memory_guards(traced.graphargs or ())
        return traced

    def _needs(self, traced: dynamo.Traced) -> _Needs:
        """What the traced code read, as portable guards."""
        record, sizes = traced.record, traced.output.input_source_to_sizes_strides
        leaked = integers(traced.bytecode) & set(record.compared.values())
        compared = frozenset(source for source, identity in record.compared.items() if identity not in leaked)
        context = GuardContext(self.sources, frozenset(traced.output.guard_on_key_order), sizes, compared)
        waived = set(map(id, self.waived))
        kept = [guard for guard in traced.output.guards if id(guard) not in waived]
        translation = translate(newest_forms(kept), context)
        asked, unasked = record.asked.guards(self.sources)
        unnoticed = unguarded(record.consumed, newest_forms(traced.output.guards), self.sources)
        shapes, unprintable = shape_guards(traced.output, self.sources)  # which no filter waives
        held = with_lookups([*translation.guards, *unnoticed.guards], record.consumed, self.sources)
        functions = (self.function, *record.functions)
        resolved = resolution_guards(held, record.consumed, traced.output.traced_code, functions, self.sources)
        nameless = exec_namespaces.code_guards(record.functions, record.consumed, self.sources)
        return _Needs(
            guards=[*held, *asked, *(guard for guard in nameless if not from_dynamo(guard.path)), *resolved, *shapes],
            met=self._met(traced, kept),
            told_apart=met_paths(record.told_apart, (), (), self.sources),
            problems=[*translation.uncacheable, *unnoticed.uncacheable, *unprintable, *unasked],
            unchecked=[*translation.unchecked, *unnoticed.unchecked, *unprintable],
            codes=[
                code for _, code in {(g.path, str(g.constant)) for g in (*translation.guards, *nameless) if g.predicate is Predicate.CODE}
            ],
        )

    def _met(self, traced: dynamo.Traced, kept: Sequence[Any]) -> list[Path]:
        """Where the objects are that have to be as many as they were."""
        found = met_paths(traced.record.met, self.waived, kept, self.sources)
        attributes = attribute_paths(found, traced.output.side_effects, self.sources)
        self.refused = self.refused or refusal_of_shared_attributes(attributes, self.sources)
        return [*found, *attributes, *cell_paths(found, (self.function, *traced.record.functions), self.sources)]

    def _digests(self, traced: dynamo.Traced, checked: list[str]) -> tuple[tuple[CodeDigest, ...], list[str]]:
        """Digests of the code and of the constant results that the graph was made from, and what of it has none."""
        covered = self.operators.covered()
        codes = [code for code in (*traced.output.traced_code, *self.operators.other_code()) if code not in covered]
        functions = [function for function in traced.record.functions if function.__code__ not in covered]
        found, missing = digests((self.function, *functions), codes, self.function.__code__, checked)
        ran, unread = self.operators.digests()
        assumed, unassumed = constant_digests([*traced.record.constants, *traced.record.asked.calls])
        return (*found, *ran, *assumed), [*missing, *unread, *unassumed]

    def _record(self, traced: dynamo.Traced, constants: tuple[TensorConstant, ...]) -> tuple[FrameRecord | None, list[str]]:
        """The rewritten bytecode as a record, or why it has no portable form."""
        broke = traced.broke is not None
        try:
            names = self.function.__globals__
            return frame_record(traced.bytecode, traced.private_names, names, constants, traced.resumed, broke), []
        except NotPortable as error:
            return None, [str(error)]

    def _all_guards(self, needs: _Needs, state: Guard, inputs: Sequence[GraphInput], record: FrameRecord | None) -> list[Guard]:
        """The guards of what was read, and those that the graph's own inputs need."""
        numbers = [*finite(inputs), *within_64_bits(inputs)]
        guards = [*needs.guards, *numbers, *aliasing_guards(inputs, self._written_after()), *device_guards(inputs, self.sources, record)]
        guards += identity_guards([*needs.met, *whole_tensors(inputs)], guards, self.sources, needs.told_apart)
        if not any(guard.create_fn_name() == "GLOBAL_STATE" for guard in self.waived):
            guards.append(state)
        if self.graph is not None and self.graph.absolute:
            guards = [self._with_offset(guard) for guard in guards]
        return guards

    def _written_after(self) -> frozenset[int]:
        """Inputs that get other values after the graph has run, where autograd sees it."""
        autograd = self.graph.autograd if self.graph is not None else None
        return frozenset(index for index, _, _ in autograd.written) if autograd is not None else frozenset()

    def _refusal(
        self, refused: CaptureRefused, guards: Sequence[Guard], problems: Sequence[str], inputs: Sequence[GraphInput]
    ) -> CaptureRefused:
        """The refusal with the guards of the calls that it holds for, where all of them have a portable form."""
        code = self.function.__code__
        refused.where = refused.where or f"{code.co_filename}:{code.co_firstlineno}"
        if not problems:
            refused.guards = canonical_order(guards)
            refused.unless = apart(inputs) if refused.shared_memory else ()
        return refused

    def _ask_filter(self, output: Any) -> None:
        if self.options.guard_filter is not None:
            self.waived = waived_guards(self.function.__code__, output, self.options.guard_filter)

    def _keep_memory_guards(self, graphargs: Sequence[Any]) -> None:
        """What generated code reads and writes looks as it was compiled for, whatever the filter says: those guards stay."""
        read = frozenset(arg.source for arg in graphargs)
        self.waived = tuple(guard for guard in self.waived if not of_memory(guard, read))

    def _with_offset(self, guard: Guard) -> Guard:
        """A TENSOR guard that pins the place of the tensor in its storage."""
        if guard.predicate is not Predicate.TENSOR or guard.constant["layout"] != "strided":
            return guard
        return replace(guard, constant={**guard.constant, "offset": self.sources.value(guard.path).storage_offset()})

    def _backend(self, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> None:
        if self.options.trace is not None:
            self.options.trace(gm)
        if self.options.backend is not None:
            self.compiled = run_backend(self.options.backend, gm, example_inputs)
            return
        self.refused = refusal_of_dataless(example_inputs)
        if self.refused is not None:
            return
        table = self.options.decompositions
        try:
            with watched(gm, self.operators):
                decompositions = default_decompositions() if table is None else table
                self.graph = aot_autograd.aten_graph(gm, example_inputs, decompositions, self.options.memory)
        except CaptureRefused as refused:
            self.refused = refused  # raised when the guards say which calls it concerns
            return
        self.operators.add(self.graph.graph)
        if self.graph.backward is not None:
            self.operators.add(self.graph.backward)

    def _outputs(self) -> tuple[GraphOutput, ...]:
        return () if self.graph is None else self.graph.outputs

    def _note_aliases(self, supplies: Mapping[str, tuple[Any, ...]], record: TraceRecord) -> None:
        for name, supply in supplies.items():
            match supply:
                case ("module" | "shims", module):
                    self.aliases[name] = (("module", module),)
                case ("scope", identity):
                    self._note_scope(name, identity, record)
                case ("builtins",):
                    self.aliases[name] = (("module", "builtins"), ("dict",))
        self.sources.memo.clear()  # paths that were asked for before, while tracing

    def _note_scope(self, name: str, identity: int, record: TraceRecord) -> None:
        """The namespace of code made by `exec`. A namedtuple's holds no state (its code is in the digests): guards on it are dropped."""
        inlined = [function for function in record.functions if id(function.__globals__) == identity]
        if any(str(function.__globals__.get("__name__", "")).startswith("namedtuple_") for function in inlined):
            self.aliases[name] = (("module", "torch._dynamo"),)
        elif path := exec_namespaces.path_of(identity, inlined, record.consumed, self.sources):
            self.aliases[name] = path

    def _path_while_tracing(self, source: Any, output: Any) -> Path | None:
        """The path of a source before all aliases are known; None where it has none that can be told yet."""
        aliases = {name: (("module", module),) for name, module in output.import_sources.items()}
        try:
            return SourceContext(self.module, aliases, self.local_values, self.sources.free).path(source)
        except (NotPortable, PathError):
            return None

    def _is_bound(self, source: Any) -> bool:
        """Whether an nn.Module owns the tensor itself, or it is a device mesh: such inputs are fetched by path when what is found there
        changes, not on each call. A DTensor that records gradients takes part in each call, so that autograd sees it.
        """
        try:
            path = self.sources.path(source)
            return is_mesh(self.sources.value(path)) or (
                len(path) > 1
                and not (self.records and is_dtensor(self.sources.value(path)))
                and path[-1][0] in ("param", "buffer", "attr", "raw")
                and isinstance(self.sources.value(path[:-1]), torch.nn.Module)
                and isinstance(self.sources.value(path), torch.Tensor)  # numbers that vary travel with each call
            )
        except (NotPortable, LookupError):
            return False

    def _inputs(self, graphargs: tuple[Any, ...]) -> list[GraphInput]:
        inputs: list[GraphInput] = []
        position = 0
        mutated: frozenset[int] = self.graph.mutated if self.graph is not None else frozenset()
        for i, arg in enumerate(graphargs):
            bound = self._is_bound(arg.source)
            if isinstance(arg.source, RandomValueSource):  # drawn by the bytecode, and handed over as a tensor
                inputs.append(GraphInput((("random", arg.source.random_call_index),), False, position))
                position += 1
                continue
            read = read_off(arg, graphargs)
            if read is not None:
                inputs.append(GraphInput(self.sources.path(arg.source), False, None, "int", read=read))
                continue
            try:
                path = self.sources.path(arg.source)
                value = self.sources.value(path)
            except (NotPortable, PathError) as error:
                raise CaptureRefused(f"graph input {i} cannot be found from the call's arguments: {error}") from None
            if type(value) is int and not arg.is_tensor:
                inputs.append(GraphInput(path, False, position, "int"))
                position += 1
                continue
            if type(value) is float and is_float(arg):
                inputs.append(GraphInput(path, False, position, "float"))
                position += 1
                continue
            if bound and is_mesh(value):
                inputs.append(GraphInput(path, True, None, "object"))
                continue
            if not isinstance(value, torch.Tensor):
                raise CaptureRefused(f"{describe(path)} is passed to the graph as a {type(value).__name__}")
            inputs.append(
                GraphInput(path, bound, None if bound else position, "tensor", i in mutated, isinstance(value, torch.nn.Parameter))
            )
            position += not bound
        if self.graph is not None:
            self.objects = objects_of(inputs, self.graph.meshes)
            if self.graph.wraps is not None:
                self.wraps = positioned(self.graph.wraps, inputs, self.graph.meshes)
        found = self.graph or self.refused
        return inputs if found is None or found.parts is None else flat_inputs(inputs, found.parts, mutated)


__all__ = ["CaptureOptions", "Dynamic", "Guard", "Predicate", "capture", "replace"]
