"""Fewer, longer loops: two neighbouring axes become one where every index runs over them as over one range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import sympy

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Kernel, Program, Scan, Size, Value, walk
from precast.lowering.ir.substitution import Mapping_, Rewriter, shared_axis
from precast.lowering.ir.sympy_calls import expand, renamed


def collapse_axes(program: Program) -> Program:
    """Merges kernel axes (outer `a`, inner `b` of extent `n`) wherever each index holds them as `c * (n*a + b)` or not at all."""
    return replace(program, steps=tuple(_collapse(s) if isinstance(s, Kernel) else s for s in program.steps))


def _collapse(kernel: Kernel) -> Kernel:
    axes = list(kernel.axes)
    scanned = {v.axis.symbol for v in _values(kernel) if isinstance(v, Scan)}
    exprs = list(dict.fromkeys(_exprs(kernel)))
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    place = 0
    while place + 1 < len(axes):
        a, b = axes[place], axes[place + 1]
        together = all(_used(s.axes, a) == _used(s.axes, b) for s in kernel.stores)
        if together and not {a.symbol, b.symbol} & scanned and all(_is_one_range(e, a.symbol, b.symbol, b.extent) for e in exprs):
            merged = shared_axis(b.symbol, ix.numel((a.extent, b.extent)))
            mapping[a.symbol] = sympy.S.Zero
            exprs = list(dict.fromkeys(renamed(e, {a.symbol: sympy.S.Zero}) for e in exprs))
            axes[place : place + 2] = [merged]
            place = max(place - 1, 0)
        else:
            place += 1
    if not mapping:
        return kernel
    names = ix.symbols(len(axes))
    final = tuple(shared_axis(s, a.extent) for s, a in zip(names, axes, strict=True))
    items: Mapping_ = (*mapping.items(), *((a.symbol, s) for a, s in zip(axes, names, strict=True)))
    kept = {a.symbol: f for a, f in zip(axes, final, strict=True)}
    rewriter = Rewriter(final, {})
    stores = []
    for store in kernel.stores:
        over = None if store.axes is None else tuple(kept[a.symbol] for a in store.axes if a.symbol in kept)
        stores.append(rewriter.store(store, rewriter.env(items), over))
    return replace(kernel, axes=final, stores=tuple(stores))


def _used(axes: tuple[Axis, ...] | None, axis: Axis) -> bool:
    return axes is None or axis in axes


def _values(kernel: Kernel) -> Iterator[Value]:
    return walk(*(r for s in kernel.stores for r in store_roots(s)))


def _exprs(kernel: Kernel) -> Iterable[sympy.Expr]:
    for store in kernel.stores:
        yield store.index
    for value in _values(kernel):
        expr = index_expr(value)
        if expr is not None:
            yield expr


@lru_cache(1 << 15)
def _is_one_range(expr: sympy.Expr, a: sympy.Symbol, b: sympy.Symbol, extent: Size) -> bool:
    if a not in expr.free_symbols and b not in expr.free_symbols:
        return True
    found = ix.coefficients(expr, (a, b))
    return found is not None and bool(expand(found[1][0] - found[1][1] * extent) == 0)
