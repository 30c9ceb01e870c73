"""Which convolutions write their result over the residual that they add: one large block less is alive while they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from precast.codegen.common.library_steps import LibraryCall, RunStep, views_of
from precast.codegen.cpu.library_calls import writes_in_place
from precast.codegen.host.step_effects import step_reads, step_writes
from precast.lowering.ir.nodes import Buffer, Conv, Extern, Program


def write_over_residuals(steps: Sequence[RunStep], program: Program) -> list[RunStep]:
    """Marks the calls of oneDNN's convolution whose residual nobody reads afterwards and lies in a library's own memory.

    What operators other than kernels and library calls have seen is left alone: their results may share its memory.
    """
    buffers = {b.name: b for b in program.buffers}
    last = {name: number for number, step in enumerate(steps) for name in (*step_reads(step), *step_writes(step))}
    seen = {name for step in steps if isinstance(step, Extern) for name in (*step_reads(step), *step_writes(step))}
    kept = seen | {o.view.buffer for o in program.outputs if o.view is not None}
    own = {s.out for s in steps if isinstance(s, LibraryCall) and not writes_in_place(s)} - kept

    def dies(number: int, step: RunStep) -> bool:
        residual = _residual(step, buffers)
        return residual in own and last[residual] == number

    return [replace(step, over=True) if isinstance(step, LibraryCall) and dies(number, step) else step for number, step in enumerate(steps)]


def _residual(step: RunStep, buffers: dict[str, Buffer]) -> str | None:
    """The buffer that the step adds, where it is like the result and no other operand."""
    if not isinstance(step, LibraryCall) or step.how != "onednn" or not isinstance(step.step, Conv) or step.step.residual is None:
        return None
    view, out = step.step.residual, buffers[step.out]
    found = buffers[view.buffer]
    like = (view.size, view.stride, view.offset, view.dtype or found.dtype) == (out.size, out.stride, 0, out.dtype)
    whole = (found.size, found.stride, found.dtype) == (out.size, out.stride, out.dtype)
    once = [v.buffer for v in views_of(step)].count(view.buffer) == 1
    return view.buffer if like and whole and once else None
