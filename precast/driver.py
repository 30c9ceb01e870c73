"""The compile callable: one call of a program -> one stored artifact. The only place that sees every folder.

The runtime imports this module on the first miss and never before: capture -> lower -> schedule -> compile -> store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from precast import __version__
from precast.artifact_store import BlobSet, GraphRecord, Manifest, Versions
from precast.artifact_store.guards import Predicate, thaw
from precast.backend_variant import backend_variant
from precast.capture import CapturedFrame, CaptureOptions, CaptureRefused, Dynamic, MarkViolated, capture
from precast.capture.garbage import seldom_collected
from precast.codegen.cuda_start import start_libraries
from precast.codegen.triton_compile import warm_up
from precast.codegen.triton_pool import begin as begin_processes
from precast.compile_log import log_dynamic, log_guards
from precast.dynamic_capture import SymbolsRefused, due_to_symbols, dynamic_of, symbolic_build, with_symbols_or_without
from precast.graph_build import GraphRequest, Stopwatch, build_graph, compiler_version
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.late_imports import import_what_comes_late
from precast.runtime import break_errors, turns
from precast.runtime.compatibility import LOWERING_VERSION, python_minor, torch_minor
from precast.runtime.errors import Deferred, InProcess, MarkError, Refused, Taken
from precast.runtime.log import warn
from precast.runtime.options import key_options
from precast.runtime.program import Program
from precast.runtime.targets import is_cuda
from precast.target_choice import has_cuda, target_of
from precast.trace import Trace, trace_for
from precast.unsteady import why_unsteady

log = logging.getLogger("precast.compile")
observers: list[Callable[[Program, CapturedFrame | CaptureRefused], None]] = []
"""Called with the result of every capture in this process; `precast.explain` adds itself here."""


def compile_variant(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | InProcess | Deferred:
    """Compile the variant of `program` that this call needs, put it into the program's store and return its id.

    `args` include `self`. A frame that cannot be stored comes back as `InProcess`, one to be finished in the background as `Deferred`.
    Raises Refused where the call has to run eagerly.
    """
    dynamic = dynamic_of(program, program.locals_of(args, kwargs))
    with seldom_collected():
        return with_symbols_or_without(program.name, dynamic, lambda chosen: _compile_with(program, args, kwargs, chosen))


def _compile_with(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], dynamic: Dynamic) -> str | InProcess | Deferred:
    watch = Stopwatch()
    trace = trace_for(program.name, program.options)
    if is_cuda(program.target) or has_cuda((args, kwargs)):
        with suppress(ImportError, RuntimeError):  # no Triton, no thread: said once it is certain that they are needed
            warm_up()
            begin_processes()
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
    if frame.needs_grad:
        raise Refused(
            "gradients are being recorded, and precast compiles inference only in this version",
            "call it under torch.no_grad() or torch.inference_mode()",
            frame.guards,
        )
    if frame.code is None:
        raise Refused("; ".join(frame.uncacheable) or "its bytecode cannot be kept")
    job = _Job(program, frame, _target(program, frame), watch, trace)
    if program.options["background_compile"] and frame.graph is not None:
        import_what_comes_late()
        return Deferred(frame.guards, lambda: _finish(job))
    libraries = start_libraries(frame.graph) if frame.graph is not None and is_cuda(job.target) else None
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
            turns.give_up()
            manifest, blobs = _compile(job, _planned(job))
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
        )
        frame = capture(function, args, dict(kwargs), name=program.name, options=options)
        _tell(program, frame)
        return frame
    except MarkViolated as violated:
        raise MarkError(str(violated)) from violated
    except CaptureRefused as refused:
        if due_to_symbols(refused, dynamic):
            raise SymbolsRefused(refused.reason, refused.hint) from refused
        trace.refused(str(refused))
        _tell(program, refused)
        where = f" (at {refused.where})" if refused.where else ""
        reason = f"{refused.reason}{where}"
        guards = None if program.options["fullgraph"] else refused.guards  # fullgraph: an error, for calls of that kind too
        raise Refused(reason, refused.hint, guards, refused.skipped, refused.unless, refused.forbidden, refused.raises) from refused


def _raises_at_breaks(program: Program) -> bool:
    said: bool = program.options["error_on_graph_break"] if break_errors.state.raises is None else break_errors.state.raises
    return said


def _tell(program: Program, outcome: CapturedFrame | CaptureRefused) -> None:
    for observer in tuple(observers):
        observer(program, outcome)


def _store(job: _Job) -> str | InProcess:
    """One compile per artifact across threads, processes and machines that share the store."""
    program = job.program
    if not program.options["store_results"]:
        manifest, blobs = _compile(job, _planned(job))
        return InProcess(manifest, blobs, "store_results is off")
    store = program.store
    planned = _planned(job)
    artifact_id = planned.artifact_id
    with job.watch.stage("wait"), store.lease(artifact_id, timeout=turns.patience()):
        known = store.get(artifact_id, program.key)
        if known is not None and store.complete(known):
            log.info("%s: artifact %s was compiled meanwhile by another process", program.name, artifact_id[:12])
            return Taken(artifact_id)
        unsteady = why_unsteady(planned, store.variants(program.key))
        manifest, blobs = _compile(job, planned)
        if unsteady:
            warn(f"precast: {program.name} is kept in this process: {unsteady}")
            return InProcess(manifest, blobs, unsteady)
        if reason := store.try_put(manifest, blobs):
            return InProcess(manifest, blobs, reason)
    return artifact_id


def _compile(job: _Job, planned: Manifest) -> tuple[Manifest, BlobSet]:
    program, frame = job.program, job.frame
    blobs = BlobSet()
    graphs: dict[str, GraphRecord] = {}
    evidence: dict[str, Any] = {}
    if frame.graph is not None:
        bound = tuple(item.bound for item in frame.inputs)
        options, inference = key_options(program.options), _in_inference_mode(frame)
        request = GraphRequest(program.name, job.target, options, bound, program.store, job.trace, inference=inference)
        graph = frame.graph
        graphs["forward"], evidence = symbolic_build(lambda: build_graph(graph, request, job.watch, blobs), frame.symbolic)
    if frame.symbols:
        evidence = {**evidence, "dynamic": list(frame.symbols)}
    manifest = planned.completed(graphs=graphs, blobs=blobs.sizes(), evidence=evidence, provenance=_provenance(job))
    log.info("%s: compiled artifact %s (%s)", program.name, manifest.artifact_id[:12], job.watch)
    return manifest, blobs


def _in_inference_mode(frame: CapturedFrame) -> bool:
    """Whether the frame's guards want inference mode; this thread's own mode may differ, as it may be the background thread."""
    return any(guard.constant["inference"] for guard in frame.guards if guard.predicate is Predicate.GLOBAL_STATE)


def _planned(job: _Job) -> Manifest:
    """The manifest of the job before compilation: its id is known, its graphs and blobs are not."""
    program, frame = job.program, job.frame
    assert frame.code is not None
    record = {
        "name": frame.name,
        "code": frame.code.to_data(),
        "inputs": [item.to_data() for item in frame.inputs],
        "outputs": [item.to_data() for item in frame.outputs],
        "wraps": thaw(frame.wraps),
    }
    return Manifest.make(
        program_key=program.key,
        program_name=program.name,
        target=job.target,
        versions=Versions(LOWERING_VERSION, torch=torch_minor(), python=python_minor(), compiler=compiler_version(job.target)),
        options=key_options(program.options),
        guards=frame.guards,
        frames=[record],
        waived=frame.waived,
        digests={f"{d.module}:{d.qualname}#{d.digest[:6]}": d.digest for d in frame.digests},
        graphs={},
        blobs={},
        precast_version=__version__,
    )


def _provenance(job: _Job) -> dict[str, Any]:
    broke = job.frame.broke
    return {"seconds": dict(job.watch.seconds)} | ({"graph_break": broke.without_folders()} if broke is not None else {})
