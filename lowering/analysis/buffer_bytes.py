"""How many bytes a buffer takes, as a number or as an expression over symbolic sizes."""

from __future__ import annotations

from typing import Any, cast

import sympy

from precast.lowering.ir.index import FloorDiv
from precast.lowering.ir.nodes import Buffer, Size
from precast.lowering.ir.sympy_calls import expand

ALIGNMENT = 64
"""Bytes: one cache line, and the widest vector register."""

DEVICE_ALIGNMENT = 512
"""Bytes on a GPU: what torch's allocator gives, and what its libraries' fastest kernels ask for."""


def nbytes_of(buffer: Buffer, alignment: int = ALIGNMENT) -> Size:
    """Bytes from the buffer's first to its last element, rounded up to the alignment."""
    if any(s == 0 for s in buffer.size):
        return 0
    span: Size = 1
    for n, s in zip(buffer.size, buffer.stride, strict=True):
        span = span + (n - 1) * s
    nbytes = span * buffer.dtype.itemsize
    if isinstance(nbytes, int):
        return -(-nbytes // alignment) * alignment
    nbytes = expand(nbytes)
    if nbytes.is_Integer:
        return -(-int(cast(Any, nbytes)) // alignment) * alignment
    factor, _ = unit_of(nbytes)
    return nbytes if factor % alignment == 0 else expand(alignment * FloorDiv(nbytes + alignment - 1, sympy.Integer(alignment)))


def unit_of(nbytes: sympy.Expr) -> tuple[int, sympy.Expr]:
    """`(factor, unit)`: the greatest number that divides every coefficient of the byte count, and the rest."""
    factor, unit = cast(Any, nbytes).primitive()
    return int(factor), unit
