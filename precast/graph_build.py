"""Builds one functional ATen graph: lowers, schedules and compiles it to a shared object, for every way in which precast gets a graph."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from precast.alone import part
from precast.artifact_store import BlobSet, GraphRecord, Store, StoreError
from precast.codegen import CompiledGraph, compile_program, with_choices
from precast.codegen.choices import tuning_name
from precast.codegen.toolchain import CompilerMissing, CompilerStopped, find_compiler
from precast.codegen.triton_ops import Unsupported as NoTritonForm
from precast.compile_log import log_graph
from precast.lowering.ir import Program
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.sizes import Unsupported
from precast.lowering.text import program_text
from precast.parts import build_parts
from precast.runtime.errors import CompileStopped, Refused
from precast.runtime.library import IMAGE
from precast.runtime.log import logger
from precast.runtime.shared_object import is_whole
from precast.runtime.targets import is_cuda, native_target
from precast.trace import Trace

observers: list[Callable[[Program, str, Mapping[str, Any]], None]] = []
"""Called with every lowered program of this process before it is scheduled, its target and options; `precast tune` adds itself here."""


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
    """What a graph is compiled for: `options` are key options; `bound[i]`: whether input i is a weight that lasts from call to call;
    `inference`: whether calls may be made in inference mode.
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


def compiler_version(target: str) -> str:
    """The names and versions of the compilers for `target`, part of every artifact's key. Raises Refused where there is none."""
    try:
        host = find_compiler().version
        return f"{host}, triton {importlib.metadata.version('triton')}" if is_cuda(target) else host
    except CompilerMissing as error:
        raise Refused(str(error), machine=True) from error
    except importlib.metadata.PackageNotFoundError as error:
        raise Refused(f"Triton is not installed, which compiles for {target}", "pip install triton", machine=True) from error


def build_graph(graph: torch.fx.GraphModule, request: GraphRequest, watch: Stopwatch, blobs: BlobSet) -> tuple[GraphRecord, dict[str, Any]]:
    """Lower, schedule and compile `graph`; its blobs go into `blobs`. The record and the evidence for the manifest.

    Raises Refused, and CompileStopped where the machine lacks disk or memory.
    """
    options: dict[str, Any] = dict(request.options)

    def build_body(body: torch.fx.GraphModule, name: str) -> GraphRecord:
        inputs = sum(1 for n in body.graph.nodes if n.op == "placeholder")
        part = f"{request.part}{name}."
        return build_graph(body, replace(request, name=f"{request.name}.{name}", bound=(False,) * inputs, part=part), watch, blobs)[0]

    parts = build_parts(graph, build_body)
    with watch.stage("lower"):
        try:
            deterministic = torch.are_deterministic_algorithms_enabled()  # guarded: other calls get another variant
            lowered = lower(graph, request.name, {**options, "deterministic": deterministic})
        except Unsupported as error:
            request.trace.refused(str(error))
            raise Refused(str(error)) from error
    given = zip(lowered.inputs, request.bound, strict=True)
    options["bound"] = [name for name, bound in given if bound and isinstance(name, str)]
    options["inference"] = request.inference
    options |= {"alone": part.alone, "shared_by": part.shared_by}
    options["tuning"] = known_choices(request.store, request.target)
    for observe in tuple(observers):
        observe(lowered, request.target, options)
    options = with_choices(_codegen_target(request.target), options)
    with watch.stage("schedule"):
        scheduled = schedule(lowered, request.target, options)
    request.trace.scheduled(lowered, scheduled, options["bound"])
    with watch.stage("codegen"):
        try:
            compiled = compile_program(scheduled, _codegen_target(request.target), options)
        except (Unsupported, NoTritonForm) as error:
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
            **{f"{IMAGE}{number}": blobs.add(image.data) for number, image in enumerate(compiled.images)},
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


def known_choices(store: Store, target: str) -> dict[str, Any]:
    """The measured choices that the store keeps for `target`: of this kind of CPU, or of the GPU's architecture."""
    choices: dict[str, Any] = (store.record("tuning", tuning_name(target)) or {}).get("choices", {})
    return choices


def keep_choices(store: Store, target: str, found: Mapping[str, Any]) -> None:
    """Adds measured choices to the store's record. Of two processes that write at once one may lose: it measures again some day.

    Raises StoreError where the store cannot be written.
    """
    known = known_choices(store, target)
    if any(known.get(key) != found[key] for key in found):
        store.put_record("tuning", tuning_name(target), {"choices": dict(sorted({**known, **found}.items()))})
