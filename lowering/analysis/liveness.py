"""Liveness of buffers, as positions in `Program.steps`."""

from __future__ import annotations

from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir.nodes import Program


def lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """First write and last use of each buffer that the steps touch. Inputs start at -1; outputs end at `len(steps)`."""
    live: dict[str, tuple[int, int]] = {name: (-1, -1) for name in program.inputs if isinstance(name, str)}
    live |= {name: (-1, len(program.steps)) for name in (*program.persistent, *(c.buffer for c in program.constants))}
    for position, step in enumerate(program.steps):
        for name in (*reads(step), *writes(step)):
            first, last = live.get(name, (position, position))
            live[name] = (first, max(last, position))
    for output in program.outputs:
        if output.view is not None and output.view.buffer in live:
            live[output.view.buffer] = (live[output.view.buffer][0], len(program.steps))
    return live
