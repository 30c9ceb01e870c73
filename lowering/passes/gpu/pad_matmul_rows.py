"""Leading-dimension padding: matrix products in half types whose number of columns is no multiple of eight (a vocabulary of 50,257), which
libraries compute at a sixth of the speed.

The result's row stride is rounded up to a multiple of eight. Code generation then multiplies a multiple of eight columns at full speed and
the remaining columns by a second call, into the same rows; no weight is copied. A result that is returned keeps the padded row stride: its
shape is eager's, its strides are not.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.traits import Traits
from precast.lowering.ir.nodes import Gemm, Program
from precast.lowering.ir.scalars import HALVES
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.layout.relayout import Move, moved

VECTOR = 8
"""Columns that cuBLAS wants a multiple of."""


def roomy_rows(program: Program, traits: Traits) -> Program:
    """The program with padded rows for the results of such products."""
    for step in program.steps:
        if isinstance(step, Gemm) and _is_odd(step, program, traits):
            program = _widened(program, step.out)
    return program


def _is_odd(step: Gemm, program: Program, traits: Traits) -> bool:
    out = program.buffer(step.out)
    columns = out.size[-1]
    if len(out.size) != 2 or out.dtype not in HALVES or not isinstance(columns, int) or columns % VECTOR == 0:
        return False
    rows, depth = hint(out.size[0]), hint(step.a.size[1])
    plain = out.stride == (columns, 1) and columns > VECTOR and step.activation == "none" and step.residual is None
    return plain and rows >= traits.odd_rows and rows * columns * depth >= traits.odd_work


def _widened(program: Program, name: str) -> Program:
    buffer = program.buffer(name)
    columns = buffer.size[1]
    assert isinstance(columns, int)
    stride = (-(-columns // VECTOR) * VECTOR, 1)
    new = moved(program, Move(name, buffer.size, stride, name), outputs=True)
    if new is None:
        return program
    return replace(new, buffers=tuple(replace(b, stride=stride) if b.name == name else b for b in new.buffers))
