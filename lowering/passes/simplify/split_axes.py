"""Axes whose quotient and remainder appear in indices become two axes: loops count instead of dividing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sympy

from precast.lowering.analysis.computed_positions import computed_position
from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Kernel, Load, Program, Scan, Size, Value, axis_symbol, walk
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.substitution import Mapping_, Rewriter, shared_axis

ROUNDS = 4
"""Axes are split again while divisions remain: a product of five dimensions needs four cuts."""


def split_axes(program: Program, positions: bool = False) -> Program:
    """Splits kernel axes (not bound ones) by the sizes that divide them. `positions`: also where it takes a look at what floats compute."""
    prepared = _plain_positions if positions else _as_it_is
    return replace(program, steps=tuple(_split(prepared(s)) if isinstance(s, Kernel) else s for s in program.steps))


def _as_it_is(kernel: Kernel) -> Kernel:
    return kernel


def _plain_positions(kernel: Kernel) -> Kernel:
    """The kernel with run-time positions that are computed of an axis in place of looked up, as index expressions."""
    extents = tuple((a.symbol, a.extent) for a in kernel.axes)
    ranges: dict[sympy.Symbol, Interval] = {s: (0, n - 1) for s, n in extents if isinstance(n, int) and n > 0}

    def rule(value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        for gather in value.gathers:
            position = computed_position(gather.value, extents)
            bounds = None if position is None else interval(position, ranges)
            if bounds is None or not isinstance(gather.size, int) or bounds[0] < 0 or bounds[1] >= gather.size:
                continue
            rest = tuple(g for g in value.gathers if g is not gather)
            known = (*extents, *((g.symbol, g.size) for g in rest))
            value = Load(value.buffer, ix.substitute(value.index, ((gather.symbol, position),), known), value.dtype, rest, value.mask)
        return value

    return map_kernel(kernel, rule)


def _split(kernel: Kernel) -> Kernel:
    for _ in range(ROUNDS):
        cut = next(_cuts(kernel), None)
        if cut is None:
            return kernel
        kernel = _apply(kernel, *cut)
    return kernel


def _cuts(kernel: Kernel) -> Iterator[tuple[Axis, Size]]:
    """Axes with the size of their inner part: `axis // c` and `axis % c` for a c that divides the extent."""
    exprs = {s.index for s in kernel.stores}
    scanned = set()
    for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
        expr = index_expr(value)
        if expr is not None:
            exprs.add(expr)
        if isinstance(value, Scan):
            scanned.add(value.axis.symbol)
    axes = {a.symbol: a for a in kernel.axes if a.symbol not in scanned}
    atoms = {atom for e in exprs for atom in e.atoms(ix.FloorDiv, ix.Modulo)}
    for atom in sorted(atoms, key=str):
        base, divisor = atom.args
        if base in axes and ix.exact_quotient(axes[base].extent, ix.plain(divisor)) is not None:
            yield axes[base], ix.plain(divisor)


def _apply(kernel: Kernel, axis: Axis, inner: Size) -> Kernel:
    outer = ix.exact_quotient(axis.extent, inner)
    assert outer is not None
    high, low = axis_symbol(f"{axis.symbol}_high"), axis_symbol(f"{axis.symbol}_low")
    parts = (Axis(high, outer), Axis(low, inner))
    axes = tuple(part for a in kernel.axes for part in (parts if a is axis else (a,)))
    names = ix.symbols(len(axes))
    renamed = {a.symbol: s for a, s in zip(axes, names, strict=True)}
    final = tuple(shared_axis(s, a.extent) for s, a in zip(names, axes, strict=True))
    items: Mapping_ = tuple((a.symbol, inner * renamed[high] + renamed[low] if a is axis else renamed[a.symbol]) for a in kernel.axes)
    rewriter = Rewriter(final, {})
    stores = []
    for store in kernel.stores:
        over = None
        if store.axes is not None:
            kept = {p.symbol for a in store.axes for p in (parts if a is axis else (a,))}
            over = tuple(f for f, a in zip(final, axes, strict=True) if a.symbol in kept)
        stores.append(rewriter.store(store, rewriter.env(items), over))
    return replace(kernel, axes=final, stores=tuple(stores))
