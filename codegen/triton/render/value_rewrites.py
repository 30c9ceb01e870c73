"""Rewrites of values before a kernel is rendered: short reductions written out, and symbols of tiles put in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import sympy

from precast.codegen.common.decided import Ranges, decided
from precast.codegen.common.value_facts import Facts, rebuild, rebuild_store, static_product, substitute
from precast.codegen.triton.render.ops import Unsupported
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.index import coefficients, contiguous_strides
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Cast,
    Const,
    Kernel,
    Load,
    Reduce,
    Scan,
    Store,
    Value,
    axis_symbol,
    operands,
    walk,
)
from precast.lowering.ir.ranges import ranges_of
from precast.lowering.ir.scalars import COMPARISONS, DType, Op, ReduceOp

FOLD: dict[ReduceOp, Op] = {
    ReduceOp.SUM: Op.ADD,
    ReduceOp.PROD: Op.MUL,
    ReduceOp.MIN: Op.MIN,
    ReduceOp.MAX: Op.MAX,
    ReduceOp.ANY: Op.OR,
    ReduceOp.ALL: Op.AND,
}

PACKED = 8
"""Points of a reduction from which it matters how they lie in memory."""

STEPPING = COMPARISONS | {Op.FLOOR, Op.CEIL, Op.TRUNC, Op.ROUND, Op.MOD, Op.REM, Op.FLOORDIV, Op.TRUNCDIV}
"""Discontinuous operations: a small error of an operand may become a large one of the result."""


def unroll(kernel: Kernel, limit: int, facts: Facts) -> Kernel:
    """The kernel with every reduction of at most `limit` points (at least one) written out, inner ones first."""
    new: dict[int, Value] = {}
    kept: list[Value] = []
    ranges = ranges_of(kernel.axes)
    for value in walk(*(root for s in kernel.stores for root in store_roots(s))):
        rebuilt = rebuild(value, new) if any(new[id(o)] is not o for o in operands(value)) else value
        new[id(value)] = _written_out(rebuilt, limit, facts, ranges) if isinstance(rebuilt, Reduce) else rebuilt
        kept += [value, rebuilt]
    return replace(kernel, stores=tuple(rebuild_store(s, new) for s in kernel.stores))


def _written_out(value: Reduce, limit: int, facts: Facts, ranges: Ranges) -> Value:
    extents = [a.extent for a in value.axes]
    if not all(isinstance(e, int | sympy.Integer) for e in extents) or not 0 < prod(int(e) for e in extents) <= limit:
        return value
    if prod(int(e) for e in extents) >= PACKED and _packed(value):
        return value
    points = []
    for at in product(*(range(int(e)) for e in extents)):
        point = substitute(value.value, {a.symbol: sympy.Integer(i) for a, i in zip(value.axes, at, strict=True)}, facts)
        points.append(decided({0: point}, ranges)[0])
    if value.op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX):
        return _first_extreme(points, value.op)
    if value.op in (ReduceOp.ANY, ReduceOp.ALL):
        points = [p if kind(p) is DType.BOOL else Cast(p, DType.BOOL) for p in points]
    else:
        points = [p if kind(p) is value.dtype.compute else Cast(p, value.dtype.compute) for p in points]
    total = points[0]
    for point in points[1:]:
        total = Alu(FOLD[value.op], (total, point), kind(points[0]))
    return total if kind(total) is value.dtype.compute else Cast(total, value.dtype.compute)


def _packed(value: Reduce) -> bool:
    """Whether what is reduced lies together in memory and no two reductions share any of it: read point by point, each line of memory would
    be asked for as often as it has points.
    """
    own = {a.symbol for a in value.axes}
    reach = prod(int(a.extent) for a in value.axes)
    loads = [v for v in walk(value.value) if isinstance(v, Load) and not v.gathers]
    found = False
    for load in loads:
        index: Any = sympy.sympify(load.index)
        affine = coefficients(index, tuple(sorted(index.free_symbols, key=str)))
        if affine is None or not all(isinstance(n, int) for n in affine[1]):
            return False
        strides = dict(zip(sorted(index.free_symbols, key=str), affine[1], strict=True))
        if own & strides.keys():
            inner = [n for s, n in strides.items() if s in own]
            found = 1 in inner and all(n % reach == 0 for s, n in strides.items() if s not in own)
            if not found:
                return False
    return found


def _first_extreme(points: list[Value], op: ReduceOp) -> Value:
    best, index = points[0], Const(0, DType.I64)
    for number, point in enumerate(points[1:], 1):
        better: Value = Alu(Op.LT, (point, best) if op is ReduceOp.ARGMIN else (best, point), DType.BOOL)
        if kind(point).is_float:
            new, old = (Alu(Op.NE, (v, v), DType.BOOL) for v in (point, best))
            better = Alu(Op.OR, (Alu(Op.AND, (better, _not(old)), DType.BOOL), Alu(Op.AND, (new, _not(old)), DType.BOOL)), DType.BOOL)
        best = Alu(Op.WHERE, (better, point, best), kind(point))
        index = Alu(Op.WHERE, (better, Const(number, DType.I64), index), DType.I64)  # type: ignore[assignment]
    return index


def _not(value: Value) -> Value:
    return Alu(Op.NOT, (value,), DType.BOOL)


def kind(value: Value) -> DType:
    """The type that the value has in registers."""
    return value.dtype.compute


def rough_values(stores: Iterable[Store], known: Mapping[str, Buffer]) -> set[Value]:
    """The values that end in half types and nowhere else: errors far below a half's last place do not matter in them."""
    roots = [root for s in stores for root in store_roots(s)]
    exact = {r for s in stores for r in store_roots(s)[1:]}
    exact |= {s.value for s in stores if known[s.buffer].dtype.compute is known[s.buffer].dtype or s.mode != "set"}
    order = list(walk(*roots))
    for value in reversed(order):
        if (
            isinstance(value, Load)
            or (isinstance(value, Alu) and value.op in STEPPING)
            or (isinstance(value, Cast) and not value.dtype.is_float)
        ):
            exact.update(operands(value))
        elif value in exact and not (isinstance(value, Cast) and value.dtype.compute is not value.dtype):
            exact.update(operands(value))
    return {v for v in order if v not in exact}


def beside_one(stores: Iterable[Store]) -> set[Value]:
    """The values that are used in sums with a constant of at least a half, and nowhere else; and quotients by such sums."""
    found: set[Value] = set()
    other = {root for s in stores for root in store_roots(s)}
    for value in walk(*other):
        sum_of = value.args if isinstance(value, Alu) and value.op in (Op.ADD, Op.SUB) else ()
        near = any(isinstance(a, Const) and abs(a.value) >= 0.5 for a in sum_of)
        (found if near else other).update(operands(value))
    found -= other
    return found | {v for v in walk(*other) if isinstance(v, Alu) and v.op is Op.DIV and _exceeds_half(v.args[1])}


def _exceeds_half(value: Value) -> bool:
    """Whether the value is a number of at least a half plus an exponential."""
    if not isinstance(value, Alu) or value.op is not Op.ADD:
        return False
    number = any(isinstance(a, Const) and a.value >= 0.5 for a in value.args)
    return number and any(isinstance(a, Alu) and a.op is Op.EXP for a in value.args)


def in_tiles(store: Store, outer: tuple[Axis, ...], tile: dict[tuple[object, ...], tuple[Axis, ...]], facts: Facts) -> Store:
    """The store with the axes of its reductions, and its own axes that are not outer, named as the tile of their extents (made on demand).

    The result's `axes` are the outer ones first, then the tile's. Raises `Unsupported` for a reduction that depends on another's point.
    """

    def axes_for(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        extents = tuple(a.extent for a in axes)
        return tile.setdefault(extents, tuple(Axis(axis_symbol(f"t{len(tile)}_{i}"), e) for i, e in enumerate(extents)))

    def renamed(value: Value, old: tuple[Axis, ...]) -> Value:
        return substitute(value, {a.symbol: b.symbol for a, b in zip(old, axes_for(old), strict=True)}, facts)

    new: dict[int, Value] = {}
    kept: list[Value] = []
    for value in walk(*store_roots(store)):
        rebuilt = rebuild(value, new) if any(new[id(o)] is not o for o in operands(value)) else value
        kept += [value, rebuilt]
        if isinstance(rebuilt, Reduce):
            own = {a.symbol for a in rebuilt.axes}
            if any(isinstance(v, Reduce | Scan) and facts.deps(v) & own for v in walk(rebuilt.value)):
                raise Unsupported("a reduction inside a reduction depends on the outer one's point")
            rebuilt = Reduce(rebuilt.op, renamed(rebuilt.value, rebuilt.axes), axes_for(rebuilt.axes), rebuilt.dtype)
        new[id(value)] = rebuilt
    store = rebuild_store(store, new)
    inner = tuple(a for a in store.axes or () if a not in outer)
    if not inner:
        return store
    finer = _finer(inner, tile)
    swapped = {} if finer else dict(zip(inner, axes_for(inner), strict=True))
    mapping: dict[sympy.Symbol, Any] = {a.symbol: b.symbol for a, b in swapped.items()}
    if finer:
        strides = contiguous_strides(tuple(a.extent for a in finer))
        mapping = {inner[0].symbol: sympy.Add(*(n * a.symbol for n, a in zip(strides, finer, strict=True)))}
    roots = {id(root): substitute(root, mapping, facts, swapped) for root in store_roots(store)}
    moved = rebuild_store(store, roots)
    kept_outer = tuple(a for a in store.axes or () if a in outer)
    index: Any = store.index
    return replace(moved, index=index.xreplace(mapping), axes=(*kept_outer, *(finer or axes_for(inner))))


def _finer(inner: tuple[Axis, ...], tile: dict[tuple[object, ...], tuple[Axis, ...]]) -> tuple[Axis, ...]:
    """The axes of a tile of several whose points in order are those of this one axis: what both read is then loaded once."""
    points = static_product(a.extent for a in inner)
    if len(inner) != 1 or points is None or (inner[0].extent,) in tile:
        return ()
    return next((axes for axes in tile.values() if len(axes) > 1 and static_product(a.extent for a in axes) == points), ())
