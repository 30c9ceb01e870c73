"""Into how many chunks a long reduction is cut, and whether: as a measurement on such a device says, else by the rule of lowering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from precast.codegen.cuda.tuning import CANONICAL, IN_CHUNKS, CudaChooser, Problem, kernel_key
from precast.codegen.triton.render.ops import Unsupported
from precast.codegen.triton.render.render import TritonKernel, render
from precast.lowering.analysis.effects import reads, store_roots, writes
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir.nodes import Buffer, Kernel, Program, Reduce, Step, walk
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.gpu.split_reductions import gpu_reductions
from precast.lowering.targets.scheduling import Pass

BY_RULE = "by rule"
LEAST_POINTS = 1 << 18
"""Points of a reduction, over all rows, from which there is a question: what reads less takes about as long as a launch."""


def ways_of(traits: Traits) -> dict[str, Traits]:
    """The traits by which the rule cuts in each way; without programs to be made, nothing is cut."""
    more = {f"{times:g} times the programs": times for times in (1 / 4, 1 / 2, 2, 4)}
    counts = {name: replace(traits, cut_programs=int(traits.cut_programs * times)) for name, times in more.items()}
    chunks = {f"{name}, of any size": replace(own, cut_chunk=traits.cut_chunk // 8) for name, own in counts.items() if more[name] > 1}
    return {BY_RULE: traits, "whole": replace(traits, cut_programs=0), **counts, **chunks}


def measured_splits(chooser: CudaChooser) -> Pass | None:
    """The pass that cuts reductions as the chooser says; None where it knows nothing about any and measures nothing."""
    asks = chooser.measure is not None or any(key.startswith(IN_CHUNKS) for key in chooser.tuning)
    return partial(_cut, chooser) if asks else None


def _cut(chooser: CudaChooser, program: Program) -> Program:
    """Kernel by kernel, as the rule does."""
    steps: list[Step] = []
    buffers = list(program.buffers)
    for step in program.steps:
        way = _way(chooser, program, step) if isinstance(step, Kernel) and _long(step) else BY_RULE
        traits = ways_of(chooser.traits).get(way, chooser.traits)
        own = gpu_reductions(replace(program, steps=(step,)), traits)
        steps += own.steps
        buffers += own.buffers[len(program.buffers) :]
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _long(kernel: Kernel) -> bool:
    sizes = [hint(a.extent) for a in kernel.axes]
    reductions = [v for v in walk(*(r for s in kernel.stores for r in store_roots(s))) if isinstance(v, Reduce)]
    rows = 1
    for size in sizes:
        rows *= size
    for value in reductions:
        points = 1
        for axis in value.axes:
            points *= hint(axis.extent)
        if points * rows >= LEAST_POINTS and points > rows // 4:
            return True
    return False


def _way(chooser: CudaChooser, program: Program, kernel: Kernel) -> str:
    """The winner's name."""
    made = {name: gpu_reductions(replace(program, steps=(kernel,)), traits) for name, traits in ways_of(chooser.traits).items()}
    try:
        key = IN_CHUNKS + " ".join(kernel_key(plain) for plain in render(kernel, program.buffers, CANONICAL))
        ways = {name: launches for name, own in made.items() if (launches := _launches(own, chooser.traits)) is not None}
    except Unsupported:
        return BY_RULE  # only in chunks, or not at all, can it be a kernel
    if BY_RULE not in ways:
        return BY_RULE
    ways = distinct(ways)
    if len(ways) == 1:
        return BY_RULE

    def problem() -> Problem:
        touched = {name for name in (*reads(kernel), *writes(kernel))}
        own = tuple(b for b in program.buffers if b.name in touched)
        return Problem(key, BY_RULE, ways=ways, buffers=own, temporaries={name: _fresh(program, made[name]) for name in ways})

    record = chooser.record(key, set(ways_of(chooser.traits)).__contains__, problem)
    return BY_RULE if record is None else str(record["winner"])


def _launches(program: Program, traits: Traits) -> tuple[TritonKernel, ...] | None:
    """Those of all steps in turn; None where one cannot be a kernel."""
    found: list[TritonKernel] = []
    for step in program.steps:
        if not isinstance(step, Kernel):
            return None
        try:
            found += render(step, program.buffers, traits=traits)
        except Unsupported:
            return None
    return tuple(found)


def distinct(ways: Mapping[str, Sequence[TritonKernel]]) -> dict[str, tuple[TritonKernel, ...]]:
    """Each sequence of kernels once, by its first name."""
    found: dict[str, tuple[TritonKernel, ...]] = {}
    seen: set[tuple[tuple[str, object], ...]] = set()
    for name, launches in ways.items():
        sources = tuple((k.source, hint(k.grid)) for k in launches)
        if sources not in seen:
            seen.add(sources)
            found[name] = tuple(launches)
    return found


def _fresh(before: Program, after: Program) -> tuple[Buffer, ...]:
    return after.buffers[len(before.buffers) :]


__all__ = ["BY_RULE", "measured_splits", "ways_of"]
