"""The compile callable: one call of a program -> one stored artifact. The only place that sees every folder.

The runtime imports this module on the first miss and never before: capture -> lower -> schedule -> compile -> store.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from precast.artifact_store import BlobSet, GraphRecord, Manifest
from precast.artifact_store.format.guards import Predicate
from precast.artifact_store.store import import_what_writing_needs
from precast.capture import CapturedFrame, CaptureOptions, CaptureRefused, Dynamic, MarkViolated, capture, patch_rows
from precast.capture.gc_pause import seldom_collected
from precast.codegen import backend_of
from precast.compiling.build_graph import GraphRequest, Stopwatch, build_graphs, compiler_version
from precast.compiling.dynamic_sizes import SymbolsRefused, due_to_symbols, dynamic_of, symbolic_build, with_symbols_or_without
from precast.compiling.foreign_backend import backend_variant
from precast.compiling.observers import captures
from precast.compiling.provenance import provenance_of
from precast.compiling.publish import Built, compile_planned, identity_of_frame, publish
from precast.compiling.target_choice import likely_family, target_of
from precast.compiling.unstable_constants import why_unsteady
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.warm_imports import import_what_comes_late
from precast.report.compile_log import log_dynamic, log_guards
from precast.report.compile_skew import near_time_outs
from precast.report.trace_folder import Trace, trace_for
from precast.runtime.common.errors import Deferred, InProcess, MarkError, Refused, Taken
from precast.runtime.common.log import warn
from precast.runtime.programs import single_flight
from precast.runtime.programs.program import Program
from precast.runtime.settings import graph_break_errors
from precast.runtime.settings.options import built_by, key_options
from precast.target_registry import family_of, load_every_part
from precast.torch_facts import calls

# Whoever imports the driver wants to compile: FactFails says why that is impossible.
patch_rows.require(patch_rows.DYNAMO + patch_rows.ATEN)
calls.require()


def compile_variant(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | InProcess | Deferred:
    """Compile the variant of `program` that this call needs, put it into the program's store and return its id.

    `args` include `self`. A frame that cannot be stored comes back as `InProcess`, one to be finished in the background as `Deferred`.
    Raises Refused where the call has to run eagerly.
    """
    dynamic = dynamic_of(program, program.locals_of(args, kwargs))
    with seldom_collected(), near_time_outs(program.name):
        return with_symbols_or_without(program.name, dynamic, lambda chosen: _compile_with(program, args, kwargs, chosen))


def _compile_with(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic: Dynamic) -> str | InProcess | Deferred:
    watch = Stopwatch()
    trace = trace_for(program.name, program.options)
    with suppress(ImportError, RuntimeError):  # no compiler, no thread: said once it is certain that they are needed
        backend_of(likely_family((args, kwargs), program.target)).begin()
    with watch.stage("capture"):
        frame = _capture(program, args, kwargs, dynamic, trace)
    trace.frame(frame)
    log_guards(program.name, frame)
    log_dynamic(program.name, frame)
    if frame.unchecked:
        refusal = SymbolsRefused if frame.symbolic else Refused
        guards = None if program.options["fullgraph"] else frame.guards  # fullgraph: an error
        raise refusal("; ".join(frame.unchecked), "what was compiled could not tell when it stops being right", guards)
    if program.backend is not None:
        return backend_variant(program, program.backend, frame)
    if frame.code is None:
        raise Refused("; ".join(frame.uncacheable) or "its bytecode cannot be kept")
    job = _Job(program, frame, _target(program, frame), watch, trace)
    if program.options["background_compile"] and frame.graph is not None:
        import_what_comes_late()
        import_what_writing_needs()
        load_every_part(job.target)
        return Deferred(frame.guards, lambda: _finish(job))
    libraries = backend_of(job.target).start_libraries(frame.graph) if frame.graph is not None else None
    try:
        return _finish(job)
    finally:
        if libraries is not None:
            libraries.join()  # freed here, so that the first run can use that memory


@dataclass(frozen=True)
class _Job:
    """A captured frame that is being compiled and stored."""

    program: Program
    frame: CapturedFrame
    target: str
    watch: Stopwatch
    trace: Trace


def _target(program: Program, frame: CapturedFrame) -> str:
    """The target of the frame's graph; where it is refused, calls that pass the frame's guards run eagerly."""
    try:
        return target_of(frame.graph, program.target)
    except Refused as refused:
        raise Refused(refused.reason, refused.hint, frame.guards) from refused


def _finish(job: _Job) -> str | InProcess:
    """All that comes after the capture."""
    with seldom_collected():
        if job.frame.uncacheable:
            single_flight.let_go()
            manifest, blobs = compile_planned(_planned(job), lambda: _build(job), job.watch)
            return InProcess(manifest, blobs, "; ".join(job.frame.uncacheable))
        return _store(job)


def _capture(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic: Dynamic, trace: Trace) -> CapturedFrame:
    try:
        function, args, kwargs = program.traced(args, kwargs)
        options = CaptureOptions(
            DECOMPOSITIONS,
            one_graph=program.options["fullgraph"],
            free_as_locals=program.free_as_locals,
            backend=program.backend.function if program.backend is not None else None,
            guard_filter=program.options["guard_filter_fn"],
            raises=_raises_at_breaks(program),
            trace=trace.dynamo_graph,
            dynamic=dynamic,
            memory=program.options["activation_memory"],
        )
        frame = capture(function, args, dict(kwargs), name=program.name, options=options)
        captures.tell(program, frame)
        return frame
    except MarkViolated as violated:
        raise MarkError(str(violated)) from violated
    except CaptureRefused as refused:
        if due_to_symbols(refused, dynamic):
            raise SymbolsRefused(refused.reason, refused.hint) from refused
        trace.refused(str(refused))
        captures.tell(program, refused)
        where = f" (at {refused.where})" if refused.where else ""
        reason = f"{refused.reason}{where}"
        guards = None if program.options["fullgraph"] else refused.guards  # fullgraph: an error, for calls of that kind too
        raise Refused(
            reason,
            refused.hint,
            guards,
            skipped=refused.skipped,
            unless=refused.unless,
            forbidden=refused.forbidden,
            raises=refused.raises,
        ) from refused


def _raises_at_breaks(program: Program) -> bool:
    said: bool = program.options["error_on_graph_break"] if graph_break_errors.state.raises is None else graph_break_errors.state.raises
    return said


def _store(job: _Job) -> str | InProcess:
    """Compile and store it, unless another process does."""
    program, planned = job.program, _planned(job)
    if not program.options["store_results"]:
        manifest, blobs = compile_planned(planned, lambda: _build(job), job.watch)
        return InProcess(manifest, blobs, "store_results is off")
    published = publish(
        planned,
        lambda: _build(job),
        program.store,
        job.watch,
        patience=single_flight.patience(),
        keep_here=lambda: why_unsteady(planned, program.store.variants(program.key)),
    )
    single_flight.let_go()
    if published.kept_here:
        warn(f"precast: {program.name} is kept in this process: {published.kept_here}")
    if published.unstored:
        return InProcess(published.manifest, published.blobs, published.unstored)
    return Taken(planned.artifact_id) if published.taken else planned.artifact_id


def _build(job: _Job) -> Built:
    program, frame = job.program, job.frame
    blobs = BlobSet()
    graphs: dict[str, GraphRecord] = {}
    evidence: dict[str, Any] = {}
    if frame.graph is not None:
        bound = tuple(item.bound for item in frame.inputs)
        options, inference = built_by(program.options), _in_inference_mode(frame)
        request = GraphRequest(program.name, job.target, options, bound, program.store, job.trace, inference=inference)
        graph = frame.graph
        graphs, evidence = symbolic_build(
            lambda: build_graphs(graph, frame.backward, frame.autograd, request, job.watch, blobs), frame.symbolic
        )
    if frame.symbols:
        evidence = {**evidence, "dynamic": list(frame.symbols)}
    return Built(graphs, blobs, evidence, _provenance(job))


def _in_inference_mode(frame: CapturedFrame) -> bool:
    """Whether the frame's guards want inference mode; this thread's own mode may differ, as it may be the background thread."""
    return any(guard.constant["inference"] for guard in frame.guards if guard.predicate is Predicate.GLOBAL_STATE)


def _planned(job: _Job) -> Manifest:
    """The manifest of the job before compilation: its id is known, its graphs and blobs are not."""
    options = key_options(job.program.options)
    return identity_of_frame(job.program, job.frame, job.target, compiler_version(job.target), options).planned()


def _provenance(job: _Job) -> dict[str, Any]:
    broke, on_host = job.frame.broke, family_of(job.target).on_host
    entry = job.program.name.partition(":")[0]
    origin = provenance_of(not on_host, (digest.module or entry for digest in job.frame.digests))
    return {"seconds": dict(job.watch.seconds)} | origin | ({"graph_break": broke.without_folders()} if broke is not None else {})
