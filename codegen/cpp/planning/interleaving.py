"""A short axis along which results are consecutive becomes several stores of one loop, which the compiler makes whole vectors of.

    for u in 0, 1: for x: out[2 * x + u] = f(x, u)        two passes over memory, each of which writes every other element
    for x: out[2 * x] = f(x, 0); out[2 * x + 1] = f(x, 1)  one pass

Upsampling by a whole factor, a pixel shuffle, parts that are stacked behind each other's elements.
"""

from __future__ import annotations

import sympy

from precast.codegen.common.decided import decided
from precast.codegen.common.index_facts import replace_symbols, stride_along
from precast.codegen.common.value_facts import Facts, rebuild_store, substitute
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Store

WAYS = (2, 3, 4, 8)
"""Numbers of stores of which compilers make vectors by shuffles."""


def interleaved(ordered: tuple[Axis, ...], stores: list[Store], facts: Facts) -> tuple[tuple[Axis, ...], list[Store]]:
    """`ordered` (vector axis last) without such an axis, and the stores with one for each of its points."""
    if len(ordered) < 2:
        return ordered, stores
    x = ordered[-1]
    short = next((a for a in ordered[:-1] if _interleaves(a, x, stores)), None)
    if short is None:
        return ordered, stores
    ranges = {a.symbol: (0, int(a.extent) - 1) for a in ordered if isinstance(a.extent, int | sympy.Integer)}
    found = [_at(s, short.symbol, sympy.Integer(n), facts) for n in range(int(short.extent)) for s in stores]
    new = decided({id(r): r for s in found for r in store_roots(s)}, ranges)
    return tuple(a for a in ordered if a is not short), [rebuild_store(s, new) for s in found]


def _interleaves(short: Axis, x: Axis, stores: list[Store]) -> bool:
    if not isinstance(short.extent, int | sympy.Integer) or int(short.extent) not in WAYS:
        return False
    steps = [(stride_along(sympy.sympify(s.index), a.symbol) for a in (short, x)) for s in stores]
    return all(s.mode == "set" and not s.gathers for s in stores) and all(a == 1 and b == short.extent for a, b in steps)


def _at(store: Store, symbol: sympy.Symbol, place: sympy.Expr, facts: Facts) -> Store:
    at = {symbol: place}
    mask = None if store.mask is None else substitute(store.mask, at, facts)
    return Store(
        store.buffer, replace_symbols(sympy.sympify(store.index), at), substitute(store.value, at, facts), store.mode, (), mask, store.axes
    )
