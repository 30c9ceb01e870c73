"""Rewrites of values before a kernel is rendered: short reductions written out, and symbols of tiles put in place."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import sympy

from precast.codegen.triton_ops import Unsupported
from precast.codegen.values import Facts, rebuild, rebuild_store, store_roots, substitute
from precast.lowering.ir import Alu, Axis, Cast, Const, DType, Kernel, Op, Reduce, ReduceOp, Store, Value, axis_symbol, operands, walk

FOLD: dict[ReduceOp, Op] = {
    ReduceOp.SUM: Op.ADD,
    ReduceOp.PROD: Op.MUL,
    ReduceOp.MIN: Op.MIN,
    ReduceOp.MAX: Op.MAX,
    ReduceOp.ANY: Op.OR,
    ReduceOp.ALL: Op.AND,
}


def unroll(kernel: Kernel, limit: int, facts: Facts) -> Kernel:
    """The kernel with every reduction of at most `limit` points (at least one) written out, inner ones first."""
    new: dict[int, Value] = {}
    kept: list[Value] = []
    for value in walk(*(root for s in kernel.stores for root in store_roots(s))):
        rebuilt = rebuild(value, new) if any(new[id(o)] is not o for o in operands(value)) else value
        new[id(value)] = _written_out(rebuilt, limit, facts) if isinstance(rebuilt, Reduce) else rebuilt
        kept += [value, rebuilt]
    return replace(kernel, stores=tuple(rebuild_store(s, new) for s in kernel.stores))


def _written_out(value: Reduce, limit: int, facts: Facts) -> Value:
    extents = [a.extent for a in value.axes]
    if not all(isinstance(e, int | sympy.Integer) for e in extents) or not 0 < prod(int(e) for e in extents) <= limit:
        return value
    points = []
    for at in product(*(range(int(e)) for e in extents)):
        points.append(substitute(value.value, {a.symbol: sympy.Integer(i) for a, i in zip(value.axes, at, strict=True)}, facts))
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
            if any(isinstance(v, Reduce) and facts.deps(v) & own for v in walk(rebuilt.value)):
                raise Unsupported("a reduction inside a reduction depends on the outer one's point")
            rebuilt = Reduce(rebuilt.op, renamed(rebuilt.value, rebuilt.axes), axes_for(rebuilt.axes), rebuilt.dtype)
        new[id(value)] = rebuilt
    store = rebuild_store(store, new)
    inner = tuple(a for a in store.axes or () if a not in outer)
    if not inner:
        return store
    mapping = {a.symbol: b.symbol for a, b in zip(inner, axes_for(inner), strict=True)}
    roots = {id(root): substitute(root, mapping, facts) for root in store_roots(store)}
    moved = rebuild_store(store, roots)
    kept_outer = tuple(a for a in store.axes or () if a in outer)
    index: Any = store.index
    return replace(moved, index=index.xreplace(mapping), axes=(*kept_outer, *axes_for(inner)))
