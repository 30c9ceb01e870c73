"""Which kernels are products of matrices in a half type: sums of products whose two sides vary along different outer axes.

Tensor cores compute such kernels, whatever computes the sides from memory and whatever follows the sums (codegen/triton/render/matmul.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import sympy

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.kernel_facts import points
from precast.lowering.ir.nodes import Alu, Axis, Cast, Load, Reduce, Scan, Store, Value, walk
from precast.lowering.ir.scalars import HALVES, HELD_BY_HALVES, DType, Op, ReduceOp
from precast.lowering.ir.sympy_calls import symbols_of

EXACT = {**{half: (half,) for half in HALVES}, **dict.fromkeys(HELD_BY_HALVES, HALVES)}
"""The half types that hold every value of a type."""
MIN_ROWS, MIN_COLUMNS, MIN_DEPTH = 2, 16, 64
MANY = 1024
"""Rows of a side that is the left one whatever the other has, if the result's neighbours in memory are the other's."""


@dataclass(frozen=True, eq=False)
class Sum:
    """One sum over the depth: what varies along the rows, and what varies along the columns."""

    value: Reduce
    left: Value
    right: Value
    half: DType


@dataclass(frozen=True, eq=False)
class Product:
    """The outer axes as rows and columns of the sums, which run over depths of the same extents.

    The rows are the many whose results lie apart in memory, or else the fewer.
    """

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    depth: tuple[Axis, ...]
    sums: tuple[Sum, ...]

    @property
    def size(self) -> tuple[int, int, int]:
        """Rows, columns and depth, as hints."""
        rows, columns, depth = (points(axes) for axes in (self.rows, self.columns, self.depth))
        return rows, columns, depth


def product_of(outer: Sequence[Axis], stores: Collection[Store]) -> Product | None:
    """Stores over the axes `outer` as products of matrices in a half type; None where they are anything else."""
    values = list(walk(*(root for s in stores for root in store_roots(s))))
    reductions = [v for v in values if isinstance(v, Reduce)]
    if not reductions or any(isinstance(v, Scan) for v in values):
        return None
    if len({tuple(a.extent for a in r.axes) for r in reductions}) > 1:
        return None
    own = frozenset(a.symbol for a in outer)
    found: Product | None = None
    for r in reductions:
        sides = _sides(r, own)
        if sides is None:
            return None
        axes = {side: tuple(a for a in outer if a.symbol in _symbols(side)) for side in sides}
        left, right = sorted(sides, key=lambda side: (_rank(axes[side], outer[-1]), outer[-1] in axes[side]))
        rows, columns = axes[left], axes[right]
        half = next((h for h in HALVES if h in held_in(left) and h in held_in(right)), None)
        if half is None or (found is not None and (found.rows, found.columns) != (rows, columns)):
            return None
        found = Product(rows, columns, r.axes, (*(found.sums if found is not None else ()), Sum(r, left, right, half)))
    return found if found is not None and all(n >= m for n, m in zip(found.size, (MIN_ROWS, MIN_COLUMNS, MIN_DEPTH), strict=True)) else None


def _rank(axes: tuple[Axis, ...], innermost: Axis) -> int:
    """The side of the lower rank is the left one."""
    count = points(axes)
    return 0 if count >= MANY and innermost not in axes else count


def _sides(r: Reduce, outer: frozenset[sympy.Symbol]) -> tuple[Value, Value] | None:
    """The factors of what is summed, if they depend on all of the depth and share out the outer axes."""
    item = r.value
    if r.op is not ReduceOp.SUM or r.dtype.compute is not DType.F32 or not isinstance(item, Alu) or item.op is not Op.MUL:
        return None
    if any(isinstance(v, Reduce) for v in walk(item)):
        return None
    one, other = item.args
    first, second = _symbols(one), _symbols(other)
    depth = frozenset(a.symbol for a in r.axes)
    apart = not first & second & outer and first & outer and second & outer and outer <= first | second
    return (one, other) if apart and depth <= first and depth <= second else None


def _symbols(value: Value) -> frozenset[sympy.Symbol]:
    """The axes (and sizes, and gathered positions) that positions in the value, which holds no reduction, depend on."""
    return frozenset().union(*(symbols_of(expr) for v in walk(value) if (expr := index_expr(v)) is not None))


def held_in(value: Value) -> tuple[DType, ...]:
    """The half types that hold the value exactly, whatever it is."""
    while isinstance(value, Cast) and value.dtype is DType.F32:
        value = value.value
    return EXACT.get(value.dtype, ()) if isinstance(value, Load | Cast) else ()
