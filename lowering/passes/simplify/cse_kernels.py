"""Common-subexpression elimination of kernels: of equal kernels one is kept."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from precast.lowering.analysis.effects import reads, writes
from precast.lowering.analysis.rewrite_values import rename_buffers
from precast.lowering.ir.nodes import Kernel, Program


def dedupe(program: Program) -> Program:
    """Drops each kernel that writes what an earlier kernel wrote, where neither the operands nor the results change in between."""
    outside = {i for i in program.inputs if isinstance(i, str)} | {o.view.buffer for o in program.outputs if o.view is not None}
    names = duplicates(program, outside)
    steps = tuple(s for s in program.steps if names.keys().isdisjoint(writes(s)))
    return rename_buffers(replace(program, steps=steps, buffers=tuple(b for b in program.buffers if b.name not in names)), names)


def duplicates(program: Program, kept: Collection[str] = ()) -> dict[str, str]:
    """Buffers that a kernel fills with what an earlier kernel put into another, and that other; all buffers of a kernel or none.

    Kernels that write a buffer of `kept` are no duplicates.
    """
    by_name = {b.name: b for b in program.buffers}
    count: dict[str, int] = {}
    for step in program.steps:
        for name in writes(step):
            count[name] = count.get(name, 0) + 1
    mutated = {n for n, c in count.items() if c > 1} | {n for n in count if n in program.inputs}
    seen: dict[object, Kernel] = {}
    names: dict[str, str] = {}
    for step in program.steps:
        if isinstance(step, Kernel) and not mutated & {*reads(step), *writes(step)}:
            layout = tuple((by_name[s.buffer].dtype, by_name[s.buffer].size, by_name[s.buffer].stride) for s in step.stores)
            values = tuple((s.index, s.value, s.mode, s.mask, s.axes, s.gathers) for s in step.stores)
            first = seen.setdefault((tuple((a.symbol, a.extent) for a in step.axes), layout, values), step)
            if first is not step and not set(kept) & set(writes(step)):
                names |= {b.buffer: a.buffer for a, b in zip(first.stores, step.stores, strict=True)}
    return names
