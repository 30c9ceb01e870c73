"""Leading-dimension padding: matrix products in half types whose number of columns is no multiple of eight (a vocabulary of 50,257), which
libraries compute at a sixth of the speed.

The result's row stride is rounded up to a multiple of eight. Code generation then multiplies a multiple of eight columns at full speed and
the remaining columns by a second call, into the same rows; no weight is copied. A result that is returned keeps the padded row stride: its
shape is eager's, its strides are not. Temporaries with such rows that a product reads get the same room: what libraries ask for is that
rows begin at multiples of sixteen bytes, of operands as of results.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.traits import Traits
from precast.lowering.ir.nodes import Gemm, Program, View
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
    results = {o.view.buffer for o in program.outputs if o.view is not None}
    for step in program.steps:
        if isinstance(step, Gemm):
            for name in dict.fromkeys(view.buffer for view in (step.a, step.b) if _is_odd_operand(view, step, program, traits)):
                if name not in results:
                    program = _widened(program, name)
    return program


def _is_odd_operand(view: View, step: Gemm, program: Program, traits: Traits) -> bool:
    """Whether it is a whole matrix, or its transpose, with rows of an odd length, in a product that is worth it."""
    buffer = program.buffer(view.buffer)
    if len(buffer.size) != 2 or len(view.size) != 2 or buffer.dtype not in HALVES or view.dtype is not None or view.offset != 0:
        return False
    columns, strides = buffer.size[1], (buffer.stride, buffer.stride[::-1])
    odd = isinstance(columns, int) and columns > VECTOR and columns % VECTOR != 0 and buffer.stride == (columns, 1)
    whole = (view.size, view.stride) in zip((buffer.size, buffer.size[::-1]), strides, strict=True)
    return odd and whole and _pays(step, program, traits)


def _pays(step: Gemm, program: Program, traits: Traits) -> bool:
    rows, columns = (hint(n) for n in program.buffer(step.out).size)
    depth = hint(step.a.size[1])
    return min(rows, columns, depth) >= traits.odd_rows and rows * columns * depth >= traits.odd_work


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
