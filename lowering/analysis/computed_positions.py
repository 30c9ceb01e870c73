"""Positions that a graph computes in floating point, as an index expression: `int(float(i) * 0.5)` is `i // 2` at every point.

Resampling is written like that. A gather at such a position says nothing of where it reads; an index says that neighbours read one element.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache

import sympy

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Cast, Const, Index, Value, walk
from precast.lowering.ir.scalars import DType, Op

MOST_POINTS = 1 << 12
"""Points of an axis at which a value is computed to see what it is."""
MOST_REPEATS = 16
"""How often a position may be repeated."""

Numbers = list[float]

BINARY: dict[Op, Callable[[float, float], float]] = {
    Op.ADD: operator.add,
    Op.SUB: operator.sub,
    Op.MUL: operator.mul,
    Op.MIN: min,
    Op.MAX: max,
}
UNARY: dict[Op, Callable[[float], float]] = {Op.FLOOR: math.floor, Op.CEIL: math.ceil, Op.TRUNC: math.trunc}


@lru_cache(1 << 10)
def computed_position(value: Value, extents: ix.Extents) -> sympy.Expr | None:
    """The index expression of one axis that an integer value is, where it is computed of floats; None where there is none as plain as
    `i + c`, `c * i` or `i // c`.
    """
    if not (isinstance(value, Cast) and value.dtype is DType.I64 and value.value.dtype.is_float):
        return None
    nodes = list(walk(value))
    exprs = {n.expr for n in nodes if isinstance(n, Index)}
    known = dict(extents)
    if len(exprs) != 1 or not all(isinstance(n, Alu | Cast | Const | Index) for n in nodes):
        return None
    (symbol,) = exprs
    extent = known.get(symbol) if isinstance(symbol, sympy.Symbol) else None
    if not isinstance(symbol, sympy.Symbol) or not isinstance(extent, int) or not 2 <= extent <= MOST_POINTS:
        return None
    found: dict[Value, Numbers] = {}
    for node in nodes:
        numbers = _numbers(node, found, extent)
        if numbers is None:
            return None
        found[node] = numbers
    return _fitted([int(n) for n in found[value]], symbol)


def _numbers(node: Value, found: dict[Value, Numbers], extent: int) -> Numbers | None:
    """What a value is at every point of the axis."""
    match node:
        case Index(dtype=dtype):
            return _in_type([float(i) for i in range(extent)], dtype)
        case Const(value=number, dtype=dtype):
            return _in_type([float(number)] * extent, dtype)
        case Cast(value=inner, dtype=dtype) if dtype.is_float or dtype is DType.I64:
            whole = not dtype.is_float
            if whole and not all(abs(n) < 1 << 52 for n in found[inner]):  # nor NaN
                return None
            return [float(math.trunc(n)) for n in found[inner]] if whole else _in_type(found[inner], dtype)
        case Alu(op=op, args=(a, b), dtype=dtype) if op in BINARY and dtype.is_float:
            return _in_type([BINARY[op](x, y) for x, y in zip(found[a], found[b], strict=True)], dtype)
        case Alu(op=op, args=(a,), dtype=dtype) if op in UNARY and dtype.is_float and all(map(math.isfinite, found[a])):
            return [float(UNARY[op](x)) for x in found[a]]
        case _:
            return None


def _in_type(numbers: Sequence[float], dtype: DType) -> Numbers | None:
    """Numbers as the type holds them: one operation in double, then rounded, is that operation in single precision."""
    if dtype is DType.F32:
        if not all(abs(n) < 3e38 for n in numbers):
            return None
        return list(struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers)))
    return list(numbers) if dtype in (DType.F64, DType.I64) else None


def _fitted(positions: list[int], symbol: sympy.Symbol) -> sympy.Expr | None:
    """The expression that has these values at 0, 1, …"""
    first, step = positions[0], positions[1] - positions[0]
    if step > 0 and all(p == first + step * i for i, p in enumerate(positions)):
        line: sympy.Expr = step * symbol + first
        return line
    repeats = next((i for i, p in enumerate(positions) if p != first), 0)
    if first == 0 and 1 < repeats <= MOST_REPEATS and all(p == i // repeats for i, p in enumerate(positions)):
        quotient: sympy.Expr = ix.FloorDiv(symbol, sympy.Integer(repeats))
        return quotient
    return None
