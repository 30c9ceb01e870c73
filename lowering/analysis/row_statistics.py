"""Pairs of reductions over the same points of which the second is about the first: squares about a mean, exponentials beside a maximum.

Of any part of the points the pair has the same form, and the pairs of the parts make up that of the whole exactly: squares by what the
parts' means lie apart (T. F. Chan, G. H. Golub and R. J. LeVeque, "Algorithms for computing the sample variance", 1983), exponentials by
the factor between two maxima (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018). So a row's pair can be
computed in one pass, and by several programs at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.rewrite_values import map_values
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Axis, Cast, Const, Index, Kernel, Load, Reduce, Store, Value, walk
from precast.lowering.ir.scalars import DType, Op, ReduceOp


@dataclass(frozen=True)
class Pair:
    """`second` sums, for each `item` that `first` combines, the square of its distance from `centre`, or with `powers` the exponential of
    it. `centre` is made of `first`: the mean, or the maximum, which may stand as 0 where it is infinite.
    """

    first: Reduce
    second: Reduce
    item: Value
    centre: Value
    powers: bool


def pairs_of(values: Iterable[Value]) -> list[Pair]:
    """The pairs among the reductions of these values."""
    reductions = [v for v in values if isinstance(v, Reduce)]
    return [pair for r in reductions if (pair := pair_of(r)) is not None]


def pair_of(second: Reduce) -> Pair | None:
    """The pair of which this is the second."""
    if second.op is not ReduceOp.SUM or second.dtype not in (DType.F32, DType.F64) or not isinstance(second.value, Alu):
        return None
    body = second.value
    powers = body.op is Op.EXP
    squares = body.op is Op.MUL and body.args[0] is body.args[1]
    away = body.args[0]
    if not (powers or squares) or not isinstance(away, Alu) or away.op is not Op.SUB or body.dtype is not second.dtype:
        return None
    item, centre = away.args
    first = _maximum(centre) if powers else _summed(centre, second.axes)
    if first is None or first.dtype is not second.dtype or [a.extent for a in first.axes] != [a.extent for a in second.axes]:
        return None
    own = {a.symbol: b.symbol for a, b in zip(second.axes, first.axes, strict=True)}
    moved = _renamed(item, own)
    return Pair(first, second, moved, centre, powers) if moved is first.value else None


def _maximum(centre: Value) -> Reduce | None:
    """The maximum that the centre is: itself, or 0 in the place of one that is -inf, or of either infinity."""
    if isinstance(centre, Alu) and centre.op is Op.WHERE:
        condition, instead, found = centre.args
        if not (isinstance(instead, Const) and instead.value == 0 and isinstance(condition, Alu) and condition.op is Op.EQ):
            return None
        left, right = condition.args
        size = isinstance(left, Alu) and left.op is Op.ABS
        compared = left.args[0] if isinstance(left, Alu) and size else left
        if compared is not found or not isinstance(right, Const) or right.value != (math.inf if size else -math.inf):
            return None
        centre = found
    return centre if isinstance(centre, Reduce) and centre.op is ReduceOp.MAX else None


def _summed(centre: Value, axes: tuple[Axis, ...]) -> Reduce | None:
    """The sum that the centre is the mean of."""
    if not isinstance(centre, Alu) or centre.op is not Op.DIV:
        return None
    total, count = centre.args
    if not isinstance(total, Reduce) or total.op is not ReduceOp.SUM:
        return None
    points = ix.numel(a.extent for a in axes)
    if isinstance(count, Cast):
        count = count.value
    said = count.expr if isinstance(count, Index) else count.value if isinstance(count, Const) else None
    same = said == points if isinstance(points, int) or not isinstance(count, Index) else sympy.sympify(said) == points
    return total if same else None


def _renamed(value: Value, symbols: dict[sympy.Symbol, sympy.Symbol]) -> Value:
    """The value with free axis symbols renamed."""
    if all(a is b for a, b in symbols.items()):
        return value

    def moved(index: Any) -> Any:
        return sympy.sympify(index).xreplace(symbols)

    def rule(found: Value) -> Value:
        if isinstance(found, Load):
            return Load(found.buffer, moved(found.index), found.dtype, found.gathers, found.mask)
        return Index(moved(found.expr), found.dtype) if isinstance(found, Index) else found

    return map_values((value,), rule)[value]


def within(pair: Pair, item: Value, first: Value, points: Value) -> Value:
    """What the second sums over a part of the points: `first` of that part, and how many `points` it has (at least one).

    Where the part's maximum is infinite, exponentials are taken as they are: then they are 0, infinite or nothing, whatever the whole is.
    """
    kind = pair.second.dtype
    if pair.powers:
        infinite = Alu(Op.EQ, (Alu(Op.ABS, (first,), kind), Const(math.inf, kind)), DType.BOOL)
        beside = Alu(Op.WHERE, (infinite, Const(0.0, kind), first), kind)
        return Alu(Op.EXP, (Alu(Op.SUB, (item, beside), kind),), kind)
    away = Alu(Op.SUB, (item, Alu(Op.DIV, (first, points), kind)), kind)
    return Alu(Op.MUL, (away, away), kind)


def joined(pair: Pair, whole: Value, first: Value, second: Value, points: Value, divisor: Value) -> Value:
    """What the second is the sum of, over the parts: `whole` is the first of all points, `first`, `second` and `points` are a part's, and
    `divisor` its points, at least one.
    """
    kind = pair.second.dtype
    centre = map_values((pair.centre,), lambda v: v, instead={pair.first: whole})[pair.centre]
    if pair.powers:
        factor = Alu(Op.EXP, (Alu(Op.SUB, (first, centre), kind),), kind)
        return Alu(Op.MUL, (second, factor), kind)
    away = Alu(Op.SUB, (Alu(Op.DIV, (first, divisor), kind), centre), kind)
    return Alu(Op.ADD, (second, Alu(Op.MUL, (points, Alu(Op.MUL, (away, away), kind)), kind)), kind)


def reductions_in(value: Value) -> set[Reduce]:
    """The reductions that the value is made of."""
    return {v for v in walk(value) if isinstance(v, Reduce)}


def rows_in_one_piece(kernel: Kernel) -> bool:
    """Whether what each store writes of one row, a point of the axes that the kernel's reductions depend on, has smaller strides than the
    rows. A store that needs no reduction counts, too: it would be written row by row with the others.
    """
    named: set[sympy.Symbol] = set()
    reductions = [v for v in walk(*(r for s in kernel.stores for r in store_roots(s))) if isinstance(v, Reduce)]
    for value in walk(*reductions):
        expr = index_expr(value)
        named |= set() if expr is None else expr.free_symbols
    return not reductions or all(_in_one_piece(store, kernel.axes if store.axes is None else store.axes, named) for store in kernel.stores)


def _in_one_piece(store: Store, axes: tuple[Axis, ...], rows: set[sympy.Symbol]) -> bool:
    found = ix.coefficients(store.index, tuple(a.symbol for a in axes))
    if found is None:
        return not any(isinstance(v, Reduce) for v in walk(*store_roots(store)))
    strides = list(zip(axes, found[1], strict=True))
    between = [n for a, n in strides if a.symbol in rows]
    inside = [n for a, n in strides if a.symbol not in rows]
    if not between or not inside:
        return True
    return all(isinstance(n, int) for n in (*between, *inside)) and min(map(int, between)) >= max(map(int, inside))


__all__ = ["Pair", "joined", "pair_of", "pairs_of", "reductions_in", "rows_in_one_piece", "within"]
