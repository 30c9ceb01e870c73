"""Layout of attention operands: queries and keys that a kernel computes are stored as [B, S, H, D], as the projections are.

Attention kernels give their result the layout of the queries, and in this one the projection that follows reads contiguous rows.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.effects import writes
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Attention, Kernel, Program, Size, View
from precast.lowering.passes.layout.channels_last import in_memory_order
from precast.lowering.passes.layout.relayout import Move, moved


def heads_of_a_row_together(program: Program) -> Program:
    """The program with such operands laid out as [B, S, H, D]; the queries stay where the result is wanted as they are."""
    for step in program.steps:
        if isinstance(step, Attention):
            out = program.buffer(step.out)
            own = len(out.size) == 4 and out.stride == _together(out.size)
            for view in (step.q, step.k) if own else (step.k,):
                program = _laid(program, view)
    return program


def _laid(program: Program, view: View) -> Program:
    buffer = program.buffer(view.buffer)
    size = buffer.size
    contiguous = len(size) == 4 and buffer.stride == ix.contiguous_strides(size) and view.stride == buffer.stride
    makers = [s for s in program.steps if buffer.name in writes(s)]
    if not contiguous or size[1] == 1 or size[2] == 1 or not all(isinstance(s, Kernel) for s in makers):
        return program
    stride = _together(size)
    new = moved(program, Move(buffer.name, size, stride, buffer.name))
    if new is None:
        return program
    steps = tuple(in_memory_order(s) if isinstance(s, Kernel) and buffer.name in writes(s) else s for s in new.steps)
    return replace(new, steps=steps, buffers=tuple(replace(b, stride=stride) if b is buffer else b for b in new.buffers))


def _together(size: tuple[Size, ...]) -> tuple[Size, ...]:
    """Strides of [B, H, S, D] that lies as [B, S, H, D]."""
    _, heads, rows, depth = size
    return (ix.numel((heads, rows, depth)), depth, ix.numel((heads, depth)), 1)
