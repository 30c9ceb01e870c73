"""The compile callable: one call of a program -> one stored artifact. The only place that sees every folder.

The runtime imports this module on the first miss and never before: capture -> lower -> schedule -> compile -> store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from precast import __version__
from precast.artifact_store import BlobSet, GraphRecord, Manifest, Store, StoreError, Versions
from precast.capture import CapturedFrame, CaptureOptions, CaptureRefused, capture
from precast.codegen import CompiledGraph, compile_program
from precast.codegen.choices import tuning_name
from precast.codegen.toolchain import CompileFailed, CompilerMissing, find_compiler
from precast.lowering.builder import Unsupported
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.text import program_text
from precast.runtime.compatibility import LOWERING_VERSION, python_minor, torch_minor
from precast.runtime.errors import InProcess, Refused
from precast.runtime.options import key_options
from precast.runtime.program import Program
from precast.runtime.targets import native_target

log = logging.getLogger("precast.compile")


class Stopwatch:
    """Seconds spent in each stage of one compile, for the artifact's provenance and the log."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - begin, 4)

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())


def compile_variant(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | InProcess:
    """Compile the variant of `program` that this call needs, put it into the program's store and return its id.

    `args` include `self`. A frame that cannot be stored comes back as `InProcess`. Raises Refused where the call has to run eagerly.
    """
    watch = Stopwatch()
    with watch.stage("capture"):
        frame = _capture(program, args, kwargs)
    if frame.needs_grad:
        raise Refused(
            "gradients are being recorded, and precast compiles inference only in this version",
            "call it under torch.no_grad() or torch.inference_mode()",
            frame.guards,
        )
    if frame.code is None:
        raise Refused("; ".join(frame.uncacheable) or "its bytecode cannot be kept")
    if frame.uncacheable:
        reason = "; ".join(frame.uncacheable)
        manifest, blobs = _compile(program, frame, watch)
        return InProcess(manifest, blobs, reason)
    return _store(program, frame, watch)


def _capture(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CapturedFrame:
    try:
        return capture(program.function, args, dict(kwargs), name=program.name, options=CaptureOptions(DECOMPOSITIONS))
    except CaptureRefused as refused:
        where = f" (at {refused.where})" if refused.where else ""
        raise Refused(f"{refused.reason}{where}", refused.hint) from refused


def _compiler() -> str:
    """The compiler's name and version, part of every artifact's key."""
    try:
        return find_compiler().version
    except CompilerMissing as error:
        raise Refused(str(error)) from error


def _codegen_target(target: str) -> str:
    """The name that code generation knows: `cpu:native-<digest of this machine's features>` is `cpu:native` there."""
    return "cpu:native" if target == native_target() else target


def _store(program: Program, frame: CapturedFrame, watch: Stopwatch) -> str | InProcess:
    """One compile per artifact across threads, processes and machines that share the store."""
    store = program.store
    artifact_id = _manifest(program, frame, {}, BlobSet(), {}, watch).artifact_id
    with watch.stage("wait"), store.lease(artifact_id):
        known = store.get(artifact_id, program.key)
        if known is not None and store.complete(known):
            log.info("%s: artifact %s was compiled meanwhile by another process", program.name, artifact_id[:12])
            return artifact_id
        manifest, blobs = _compile(program, frame, watch)
        if store.try_put(manifest, blobs) is None:
            return InProcess(manifest, blobs, "the store cannot be written")
    return artifact_id


def _compile(program: Program, frame: CapturedFrame, watch: Stopwatch) -> tuple[Manifest, BlobSet]:
    blobs = BlobSet()
    graphs: dict[str, GraphRecord] = {}
    evidence: dict[str, Any] = {}
    if frame.graph is not None:
        compiled = _compile_graph(program, frame, watch, blobs, graphs)
        evidence = compiled.evidence
    manifest = _manifest(program, frame, graphs, blobs, evidence, watch)
    log.info("%s: compiled artifact %s (%s)", program.name, manifest.artifact_id[:12], watch)
    return manifest, blobs


def _compile_graph(
    program: Program, frame: CapturedFrame, watch: Stopwatch, blobs: BlobSet, graphs: dict[str, GraphRecord]
) -> CompiledGraph:
    assert frame.graph is not None
    options: dict[str, Any] = dict(key_options(program.options))
    with watch.stage("lower"):
        try:
            lowered = lower(frame.graph, program.name, options)
        except Unsupported as error:
            raise Refused(str(error)) from error
    given = zip(lowered.inputs, frame.inputs, strict=True)
    options["bound"] = [name for name, item in given if item.bound and isinstance(name, str)]
    with watch.stage("schedule"):
        scheduled = schedule(lowered, program.target, options)
    name = tuning_name()
    options["tuning"] = (program.store.record("tuning", name) or {}).get("choices", {})
    with watch.stage("codegen"):
        try:
            compiled = compile_program(scheduled, _codegen_target(program.target), options)
        except CompileFailed as error:
            raise Refused(f"its generated code did not compile, which is a bug of precast: {error}") from error
    watch.seconds |= {f"codegen.{part.removesuffix('_s')}": round(seconds, 4) for part, seconds in compiled.timings.items()}
    _keep_tuning(program.store, name, compiled.evidence["choices"])
    graphs["forward"] = GraphRecord(
        {
            "library": blobs.add(compiled.library),
            "kernel_source": blobs.add(compiled.kernel_source),
            "host_source": blobs.add(compiled.host_source),
            "schedule": blobs.add(program_text(scheduled)),
        },
        io={
            "inputs": list(compiled.inputs),
            "outputs": list(compiled.outputs),
            "workspace_bytes": compiled.workspace_bytes,
        },
    )
    return compiled


def _keep_tuning(store: Store, name: str, found: Mapping[str, Any]) -> None:
    """Adds measured choices to the store's record. Of two processes that write at once one may lose: it measures again some day."""
    if store.readonly:
        return
    known = dict((store.record("tuning", name) or {}).get("choices", {}))
    if all(key in known for key in found):
        return
    try:
        store.put_record("tuning", name, {"choices": dict(sorted({**known, **found}.items()))})
    except StoreError as error:
        log.info("measured choices were not kept: %s", error)


def _manifest(
    program: Program,
    frame: CapturedFrame,
    graphs: Mapping[str, GraphRecord],
    blobs: BlobSet,
    evidence: Mapping[str, Any],
    watch: Stopwatch,
) -> Manifest:
    assert frame.code is not None
    record = {
        "name": frame.name,
        "code": frame.code.to_data(),
        "inputs": [item.to_data() for item in frame.inputs],
        "outputs": [item.to_data() for item in frame.outputs],
    }
    return Manifest.make(
        program_key=program.key,
        program_name=program.name,
        target=program.target,
        versions=Versions(lowering=LOWERING_VERSION, torch=torch_minor(), python=python_minor(), compiler=_compiler()),
        options=key_options(program.options),
        guards=frame.guards,
        frames=[record],
        waived=frame.waived,
        digests={f"{d.module}:{d.qualname}#{d.digest[:6]}": d.digest for d in frame.digests},
        graphs=graphs,
        blobs=blobs.sizes(),
        evidence=evidence,
        provenance={"seconds": dict(watch.seconds)},
        precast_version=__version__,
    )
