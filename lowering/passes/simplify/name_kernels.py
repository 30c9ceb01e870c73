"""Kernels get their names by the order in which they run."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from precast.lowering.ir.nodes import Kernel, Program, Step


def name_kernels(program: Program) -> Program:
    """Numbers the kernels in order, so that names are unique and do not depend on what was fused away."""
    names = (f"kernel{n}" for n in count())

    def named(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(replace(s, name=next(names)) if isinstance(s, Kernel) else s for s in steps)

    return replace(program, prepare=named(program.prepare), steps=named(program.steps))
