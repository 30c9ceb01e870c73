"""Builds one functional ATen graph: lowers, schedules and compiles it to a shared object, for every way in which precast gets a graph."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from precast.artifact_store import BlobSet, GraphRecord, Store, StoreError
from precast.artifact_store.format.records import AutogradRecord
from precast.capture.aten.joint.recorded_graphs import restride
from precast.codegen import CompiledGraph, backend_of
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.common.toolchain import CompilerMissing, CompilerStopped
from precast.compiling.exclusive import part
from precast.compiling.observers import lowerings
from precast.compiling.subgraphs import build_parts
from precast.lowering.analysis.traits import traits_of
from precast.lowering.costs.records import STEPS, StepRecord, to_json
from precast.lowering.ir.sizes import Unsupported
from precast.lowering.ir.text import program_text
from precast.lowering.lower import lower
from precast.lowering.options import DEFAULTS, LoweringOptions
from precast.lowering.pipeline import planned, schedule
from precast.report.compile_log import log_graph
from precast.report.source_lines import with_sources
from precast.report.trace_folder import Trace
from precast.runtime.common.errors import CompileStopped, Refused
from precast.runtime.common.log import logger
from precast.runtime.executable.library import IMAGE
from precast.runtime.loading.open import BACKWARD, FORWARD
from precast.runtime.targets.ladder import rules_of
from precast.runtime.targets.shared_object import is_whole
from precast.torch_facts.calls import missing_calls


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
    """What a graph is compiled for: `options` are what `built_by` gives; `bound[i]`: whether input i is a weight that lasts from call to
    call; `inference`: whether calls may be made in inference mode.
    """

    name: str
    target: str
    options: Mapping[str, Any]
    bound: tuple[bool, ...]
    store: Store
    trace: Trace
    part: str = ""
    """Of a body of another graph (`torch.cond`): its name, under which its compiler's seconds are kept."""
    inference: bool = True
    frees_inputs: bool = False
    """Whether it is a backward graph, which frees what the forward graph kept for it as it goes (`CompileContext`)."""
    updates: bool = False
    """Whether it is an optimiser's step (`LoweringOptions.updates`)."""


def options_of(options: Mapping[str, Any]) -> tuple[LoweringOptions, CodegenOptions]:
    """What lowering and code generation read of key options; nothing below reads them again."""
    freeze = bool(options["freeze"])
    lowering = LoweringOptions(
        freeze=freeze,
        epilogue_fusion=bool(options["epilogue_fusion"]),
        fallback_random=bool(options["fallback_random"]),
        memory_growth=float(options.get("memory_growth", DEFAULTS.memory_growth)),
    )
    codegen = CodegenOptions(
        freeze=freeze,
        max_autotune=bool(options["max_autotune"]),
        max_autotune_seconds=float(options.get("max_autotune_seconds") or 0) or math.inf,
        sanitize=str(options.get("sanitize") or ""),
    )
    return lowering, codegen


def compiler_version(target: str) -> str:
    """The names and versions of the compilers for `target`, part of every artifact's key. Raises Refused where there is none."""
    try:
        return backend_of(target).compiler_version(target)
    except CompilerMissing as error:
        raise Refused(str(error), error.hint, machine=True) from error


def build_graph(graph: torch.fx.GraphModule, request: GraphRequest, watch: Stopwatch, blobs: BlobSet) -> tuple[GraphRecord, dict[str, Any]]:
    """Lower, schedule and compile `graph`; its blobs go into `blobs`. The record and the evidence for the manifest.

    Raises Refused, and CompileStopped where the machine lacks disk or memory.
    """
    lowering, codegen = options_of(request.options)

    def build_body(body: torch.fx.GraphModule, name: str) -> GraphRecord:
        inputs = sum(1 for n in body.graph.nodes if n.op == "placeholder")
        part = f"{request.part}{name}."
        return build_graph(
            body, replace(request, name=f"{request.name}.{name}", bound=(False,) * inputs, part=part, frees_inputs=False), watch, blobs
        )[0]

    parts = build_parts(graph, build_body)
    lowering = replace(lowering, updates=request.updates)
    with watch.stage("lower"):
        try:
            deterministic = torch.are_deterministic_algorithms_enabled()  # guarded: other calls get another variant
            lowered = lower(graph, request.name, replace(lowering, deterministic=deterministic), traits_of(request.target))
        except Unsupported as error:
            request.trace.refused(str(error))
            raise Refused(str(error)) from error
    given = zip(lowered.inputs, request.bound, strict=True)
    weights = tuple(name for name, bound in given if bound and isinstance(name, str))
    lowerings.tell(lowered, request.target, lowering, weights)
    context = CompileContext(
        weights,
        request.inference,
        request.frees_inputs,
        known_choices(request.store, request.target),
        part.alone,
        part.shared_by,
        missing_calls(),
    )
    target, backend = rules_of(request.target).codegen_name(request.target), backend_of(request.target)
    unsupported: tuple[type[Exception], ...] = (Unsupported, *backend.unsupported)
    compilation = backend.compilation(target, codegen, context)
    with watch.stage("schedule"):
        scheduled = schedule(lowered, request.target, lowering, weights, instead=compilation.passes)
        shown = planned(scheduled, request.target)
    request.trace.scheduled(lowered, shown, weights)
    with watch.stage("codegen"):
        try:
            compiled = compilation.compile(scheduled)
        except unsupported as error:
            request.trace.refused(str(error))
            raise Refused(str(error)) from error
        except CompilerStopped as error:
            raise CompileStopped(str(error)) from error
    if not is_whole(compiled.library):
        raise CompileStopped(
            f"{compiled.evidence['compiler']} said that all went well, and left no whole shared object. "
            "Mend or replace the compiler, and start the program again"
        )
    watch.seconds |= {f"codegen.{request.part}{step.removesuffix('_s')}": round(seconds, 4) for step, seconds in compiled.timings.items()}
    if not request.store.readonly:
        try:
            keep_choices(request.store, request.target, compiled.evidence["choices"])
        except StoreError as error:
            logger("compile").info("measured choices were not kept: %s", error)
    request.trace.compiled(compiled)
    log_graph(request.name, lowered, shown, compiled, weights)
    record = _record(compiled, program_text(shown), with_sources(compiled.steps, graph), blobs)
    return GraphRecord({**record.blobs, **parts}, record.io), compiled.evidence


def build_graphs(
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule | None,
    autograd: AutogradRecord | None,
    request: GraphRequest,
    watch: Stopwatch,
    blobs: BlobSet,
) -> tuple[dict[str, GraphRecord], dict[str, Any]]:
    """The records of a call's graphs by role, and the evidence: the backward graph's under its role. Raises what `build_graph` raises."""
    record, evidence = build_graph(forward, request, watch, blobs)
    if backward is None or autograd is None:
        return {FORWARD: record}, evidence
    _take_as_laid_out(backward, autograd, record)
    inputs = sum(1 for n in backward.graph.nodes if n.op == "placeholder")
    asked = replace(
        request, name=f"{request.name}.{BACKWARD}", bound=(False,) * inputs, part=f"{BACKWARD}.", inference=False, frees_inputs=True
    )
    gradients, found = build_graph(backward, asked, watch, blobs)
    return {FORWARD: record, BACKWARD: gradients}, {**evidence, BACKWARD: found}


def _take_as_laid_out(backward: torch.fx.GraphModule, autograd: AutogradRecord, forward: GraphRecord) -> None:
    """Gives the backward graph's inputs the strides with which the forward graph's compiled form leaves them in memory."""
    made = forward.io["outputs"]
    places = backward.graph.find_nodes(op="placeholder")[len(autograd.numbers) :]
    for (source, index), place in zip(autograd.saved, places, strict=False):
        if source == "raw" and all(isinstance(n, int) for n in made[index]["stride"]):
            restride(place, made[index]["stride"])


def _record(compiled: CompiledGraph, schedule_text: str, steps: Sequence[StepRecord], blobs: BlobSet) -> GraphRecord:
    return GraphRecord(
        {
            "library": blobs.add(compiled.library),
            "kernel_source": blobs.add(compiled.kernel_source),
            "host_source": blobs.add(compiled.host_source),
            "schedule": blobs.add(schedule_text),
            STEPS: blobs.add(to_json(steps)),
            **{f"{IMAGE}{number}": blobs.add(image.data) for number, image in enumerate(compiled.images)},
        },
        io={
            "inputs": list(compiled.inputs),
            "outputs": list(compiled.outputs),
            "workspace_bytes": compiled.workspace_bytes,
        },
    )


def known_choices(store: Store, target: str) -> dict[str, Any]:
    """The measured choices that the store keeps for `target`: of this kind of CPU, or of the GPU's architecture."""
    choices: dict[str, Any] = (store.fetch_record("tuning", backend_of(target).tuning_name(target)) or {}).get("choices", {})
    return choices


def keep_choices(store: Store, target: str, found: Mapping[str, Any]) -> None:
    """Adds measured choices to the store's record. Of two processes that write at once one may lose: it measures again some day.

    Raises StoreError where the store cannot be written.
    """
    known = known_choices(store, target)
    if any(known.get(key) != found[key] for key in found):
        store.put_record("tuning", backend_of(target).tuning_name(target), {"choices": dict(sorted({**known, **found}.items()))})
