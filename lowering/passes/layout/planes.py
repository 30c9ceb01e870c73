"""Convolutions between planes: what they read is an input of the program with each channel in a plane of its own, and what is made of their
result leaves the program so. In channels-last images both would be copied for the one convolution's sake.
"""

from __future__ import annotations

from precast.lowering.analysis.effects import reads, writes
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Conv, Kernel, Program


def between_planes(program: Program) -> frozenset[str]:
    """The results of such convolutions."""
    buffers = {b.name: b for b in program.buffers}
    inputs = {i for i in program.inputs if isinstance(i, str)}
    convolutions = [s for s in program.steps if isinstance(s, Conv) and s.x.buffer in inputs and _in_planes(buffers[s.x.buffer])]
    return frozenset(s.out for s in convolutions if _whole(s, buffers[s.x.buffer]) and _leaves_in_planes(program, s.out, buffers))


def _in_planes(buffer: Buffer) -> bool:
    return buffer.stride == ix.contiguous_strides(buffer.size)


def _whole(step: Conv, source: Buffer) -> bool:
    return step.x.size == source.size and step.x.stride == source.stride and step.x.offset == 0


def _leaves_in_planes(program: Program, name: str, buffers: dict[str, Buffer]) -> bool:
    """Whether only kernels read the buffer and what they make of it, and whatever of that is an output lies in planes."""
    reached = {name}
    for step in program.steps:
        if reached & {*reads(step)}:
            if not isinstance(step, Kernel):
                return False
            reached |= {*writes(step)}
    outputs = reached & {o.view.buffer for o in program.outputs if o.view is not None}
    return bool(outputs) and all(_in_planes(buffers[n]) for n in outputs)
