"""The lines of PRECAST_LOGS=guards,dynamic,kernels,fusion,perf_hints for one compile. Topics that are off cost nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from typing import Any

import sympy

from precast.artifact_store.format.guards import Predicate
from precast.artifact_store.format.text import counted
from precast.capture import CapturedFrame
from precast.codegen import CompiledGraph
from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir.nodes import Extern, Kernel, Program
from precast.lowering.ir.text import step_text
from precast.report.units import human_size
from precast.runtime.common.log import logger
from precast.runtime.guards.text import guard_columns
from precast.runtime.paths.paths import describe

COPY_WORTH_A_HINT = 1_000_000
"""Bytes from which a copy into another layout is mentioned."""


def log_guards(name: str, frame: CapturedFrame) -> None:
    """How many guards of each kind; at debug level (`guards=debug`) each of them."""
    log = logger("guards")
    if not log.isEnabledFor(logging.INFO):
        return
    log.info("%s: %d guards (%s)", name, len(frame.guards), counted(guard.predicate for guard in frame.guards))
    for text in frame.waived:
        log.info("%s: waived: %s", name, text)
    for text in frame.uncacheable:
        log.info("%s: not portable, so that it cannot be stored: %s", name, text)
    if log.isEnabledFor(logging.DEBUG):
        for guard in frame.guards:
            log.debug("%s:   %s", name, " ".join(guard_columns(guard.path, guard.predicate, guard.constant)).rstrip())


def log_dynamic(name: str, frame: CapturedFrame) -> None:
    """Which sizes and numbers of the frame are symbolic, and where that holds."""
    log = logger("dynamic")
    if frame.graph is None or not log.isEnabledFor(logging.INFO):
        return
    symbols = []
    for item in frame.inputs:
        if item.kind in ("int", "float"):
            what, k, *dim = item.read or ("", 0)
            place = describe(frame.inputs[k].path)
            symbols.append(" ".join(map(str, (what, *dim, "of", place))) if item.read is not None else describe(item.path))
    log.info("%s: symbolic: %s", name, ", ".join(symbols) or "nothing, every size and number is that of the call")
    for guard in frame.guards:
        if guard.predicate is Predicate.SHAPE:
            log.info("%s:   where %s", name, guard_columns(guard.path, guard.predicate, guard.constant)[2])
    for line in frame.symbols:
        log.info("%s:   %s", name, line)


def log_graph(name: str, lowered: Program, scheduled: Program, compiled: CompiledGraph, weights: Collection[str]) -> None:
    """Kernels, fusion and hints of a compiled graph."""
    if logger("kernels").isEnabledFor(logging.INFO):
        _kernels(name, scheduled, compiled)
    if logger("fusion").isEnabledFor(logging.INFO):
        _fusion(name, lowered, scheduled)
    if logger("perf_hints").isEnabledFor(logging.INFO):
        for hint in hints(scheduled, compiled, weights):
            logger("perf_hints").info("%s: %s", name, hint)


def _kernels(name: str, scheduled: Program, compiled: CompiledGraph) -> None:
    """One line a step, in order; the whole step at debug level (`kernels=debug`)."""
    log = logger("kernels")
    buffers = {b.name: b for b in scheduled.buffers}
    log.info("%s: %d steps, workspace %s", name, len(scheduled.steps), human_or_text(compiled.workspace_bytes))
    for number, step in enumerate(scheduled.steps):
        traffic = sum(nbytes_hint(buffers[b]) for b in {*reads(step), *writes(step)})
        what = f"{step.name} over {' x '.join(str(a.extent) for a in step.axes) or 'one point'}" if isinstance(step, Kernel) else ""
        what = what or step_text(step).splitlines()[0]
        log.info("%s: %3d %s; %s; from %s", name, number, what, human_size(int(traffic)), ", ".join(step.origins) or "the scheduler")
        for line in step_text(step).splitlines() if log.isEnabledFor(logging.DEBUG) else ():
            log.debug("%s:       %s", name, line)


def human_or_text(size: Any) -> str:
    """A size as text; a symbolic one as its expression."""
    return human_size(int(size)) if isinstance(size, int | sympy.Integer) else f"{size} bytes"


def _fusion(name: str, lowered: Program, scheduled: Program) -> None:
    """What became of the kernels, and each refusal with its reason."""
    before, after = (sum(isinstance(step, Kernel) for step in p.steps) for p in (lowered, scheduled))
    logger("fusion").info("%s: %d kernels became %d", name, before, after)
    for step in scheduled.steps:
        if len(step.origins) > 1:
            what = step.name if isinstance(step, Kernel) else step_text(step).partition("(")[0]
            logger("fusion").info("%s: fused into %s: %s", name, what, ", ".join(step.origins))
    for note in scheduled.notes:
        logger("fusion").info("%s: %s", name, note)


def hints(scheduled: Program, compiled: CompiledGraph, weights: Collection[str]) -> list[str]:
    """What costs time and can be changed, each with what to do."""
    buffers = {b.name: b for b in scheduled.buffers}
    found = []
    for op, count in Counter(step.op for step in scheduled.steps if isinstance(step, Extern)).items():
        if op in compiled.python_calls:
            found.append(f"{op} ({count} times a call) is called through Python, which takes tens of microseconds each time")
    for step in scheduled.steps:
        if isinstance(step, Kernel) and not step.origins:
            size = sum(int(nbytes_hint(buffers[b])) for b in writes(step))
            if size >= COPY_WORTH_A_HINT:
                source = ", ".join(reads(step))
                found.append(f"{step.name} copies {human_size(size)} ({source}) into another layout: hand it over in that layout")
    known, spent = set(weights), 0
    for step in scheduled.steps:
        if reads(step) and known.issuperset(reads(step)):
            known.update(writes(step))
            spent += sum(int(nbytes_hint(buffers[b])) for b in writes(step))
    if spent:
        found.append(f"{human_size(spent)} are computed from weights alone at each call; options={{'freeze': True}} computes them once")
    return found


__all__ = ["hints", "log_graph", "log_guards"]
