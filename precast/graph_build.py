"""One functional ATen graph -> a shared object with its sources, put into a BlobSet: what every door to precast does with a graph."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch.fx

from precast.artifact_store import BlobSet, GraphRecord, Store, StoreError
from precast.codegen import CompiledGraph, compile_program
from precast.codegen.choices import tuning_name
from precast.codegen.toolchain import CompilerMissing, find_compiler
from precast.compile_log import log_graph
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.sizes import Unsupported
from precast.lowering.text import program_text
from precast.parts import build_parts
from precast.runtime.errors import Refused
from precast.runtime.log import logger
from precast.runtime.targets import native_target
from precast.trace import Trace


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


@dataclass(frozen=True)
class GraphRequest:
    """What a graph is compiled for: `options` are key options; `bound[i]`: whether input i is a weight that lasts from call to call."""

    name: str
    target: str
    options: Mapping[str, Any]
    bound: tuple[bool, ...]
    store: Store
    trace: Trace


def compiler_version() -> str:
    """The compiler's name and version, part of every artifact's key. Raises Refused where there is none."""
    try:
        return find_compiler().version
    except CompilerMissing as error:
        raise Refused(str(error)) from error


def build_graph(graph: torch.fx.GraphModule, request: GraphRequest, watch: Stopwatch, blobs: BlobSet) -> tuple[GraphRecord, dict[str, Any]]:
    """Lower, schedule and compile `graph`; its blobs go into `blobs`. The record and the evidence for the manifest. Raises Refused."""
    options: dict[str, Any] = dict(request.options)

    def build_body(body: torch.fx.GraphModule, name: str) -> GraphRecord:
        inputs = sum(1 for n in body.graph.nodes if n.op == "placeholder")
        return build_graph(body, replace(request, name=f"{request.name}.{name}", bound=(False,) * inputs), watch, blobs)[0]

    parts = build_parts(graph, build_body)
    with watch.stage("lower"):
        try:
            lowered = lower(graph, request.name, options)
        except Unsupported as error:
            request.trace.refused(str(error))
            raise Refused(str(error)) from error
    given = zip(lowered.inputs, request.bound, strict=True)
    options["bound"] = [name for name, bound in given if bound and isinstance(name, str)]
    with watch.stage("schedule"):
        scheduled = schedule(lowered, request.target, options)
    request.trace.scheduled(lowered, scheduled, options["bound"])
    name = tuning_name()
    options["tuning"] = (request.store.record("tuning", name) or {}).get("choices", {})
    with watch.stage("codegen"):
        compiled = compile_program(scheduled, _codegen_target(request.target), options)
    watch.seconds |= {f"codegen.{part.removesuffix('_s')}": round(seconds, 4) for part, seconds in compiled.timings.items()}
    _keep_tuning(request.store, name, compiled.evidence["choices"])
    request.trace.compiled(compiled)
    log_graph(request.name, lowered, scheduled, compiled, options["bound"])
    record = _record(compiled, program_text(scheduled), blobs)
    return GraphRecord({**record.blobs, **parts}, record.io), compiled.evidence


def _record(compiled: CompiledGraph, schedule_text: str, blobs: BlobSet) -> GraphRecord:
    return GraphRecord(
        {
            "library": blobs.add(compiled.library),
            "kernel_source": blobs.add(compiled.kernel_source),
            "host_source": blobs.add(compiled.host_source),
            "schedule": blobs.add(schedule_text),
        },
        io={
            "inputs": list(compiled.inputs),
            "outputs": list(compiled.outputs),
            "workspace_bytes": compiled.workspace_bytes,
        },
    )


def _codegen_target(target: str) -> str:
    """The name that code generation knows: `cpu:native-<digest of this machine's features>` is `cpu:native` there."""
    return "cpu:native" if target == native_target() else target


def _keep_tuning(store: Store, name: str, found: Mapping[str, Any]) -> None:
    """Adds measured choices to the store's record. Of two processes that write at once one may lose: it measures again some day."""
    if store.readonly:
        return
    known = dict((store.record("tuning", name) or {}).get("choices", {}))
    if all(known.get(key) == found[key] for key in found):
        return
    try:
        store.put_record("tuning", name, {"choices": dict(sorted({**known, **found}.items()))})
    except StoreError as error:
        logger("compile").info("measured choices were not kept: %s", error)
