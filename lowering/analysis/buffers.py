"""The buffers of a program: a new one, and those that nothing uses."""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir.nodes import Buffer, Program, Size
from precast.lowering.ir.scalars import DType


def add_buffer(buffers: dict[str, Buffer], name: str, size: tuple[Size, ...], stride: tuple[Size, ...], dtype: DType) -> str:
    """Adds a buffer under a name that is free, and returns the name."""
    assert name not in buffers
    buffers[name] = Buffer(name, dtype, size, stride)
    return name


def without_unused_buffers(program: Program) -> Program:
    """Drops buffers that no step and no output mentions any more (inputs stay)."""
    used = {i for i in program.inputs if isinstance(i, str)} | set(program.persistent)
    used |= {o.view.buffer for o in program.outputs if o.view is not None}
    for step in (*program.steps, *program.prepare):
        used.update(reads(step))
        used.update(writes(step))
    return replace(program, buffers=tuple(b for b in program.buffers if b.name in used))
