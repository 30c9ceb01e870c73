"""Reductions over windows that slide along the vector axis, in two steps: columns first, into a row buffer, then windows of that row.

    for c: row[c] = max over r0 of x[h + r0, c]          consecutive memory, and no element is read for two windows
    for i: out[i] = max over r1 of row[2 * i + r1]

A window of k by k takes 2k steps in place of k * k. Borders are masks of columns, decided once a column; the second step has none.
Where the results lie across, as those of an image whose channels are to be last, rows of as many channels as a cache line holds are turned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.common.value_facts import Facts, rebuild, rebuild_store, static_product, substitute
from precast.codegen.cpp.planning.sections import ROW_LIMIT, UNROLL_LIMIT, Phase, Section, vector_last
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.index import contiguous_strides
from precast.lowering.ir.nodes import Axis, Buffer, Index, Load, Reduce, Scan, Store, Value, axis_symbol, walk
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ir.sizes import known

OPS = (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.MIN)
MOST_TURNED = 1024
"""Points of a row of which a block is turned at most: 16 rows of f32 take 64 KiB, a part of the second cache."""
LEAST = 8
"""Points of the vector axis below which a row is not worth its buffer."""


@dataclass(frozen=True)
class Window:
    """A reduction whose value depends on the vector axis x and on its own axis `along` only through `step * x + pace * along`."""

    along: Axis
    step: int
    pace: int


def in_rows(axes: tuple[Axis, ...], stores: list[Store], facts: Facts) -> Phase | None:
    """The phase of stores whose reductions are all such windows; None for any others."""
    roots = [root for s in stores for root in store_roots(s)]
    nodes = list(walk(*roots))
    reduces = [n for n in nodes if isinstance(n, Reduce)]
    if not reduces or not axes or any(isinstance(n, Scan) for n in nodes) or any(s.mode != "set" for s in stores):
        return None
    ordered = vector_last(axes, Section(axes, stores=tuple(stores)))
    across = any(_step(n, ordered[-1]) not in (0, 1, None) for r in reduces for n in walk(r.value) if isinstance(n, Load))
    for x in reversed(ordered) if across else ordered[-1:]:  # rather columns of the result than windows across memory
        phase = _along(x, tuple(a for a in ordered if a is not x), stores, reduces, nodes, facts)
        if phase is not None:
            return phase
    return None


def _step(load: Load, axis: Axis) -> sympy.Expr | None:
    return stride_along(load.index, axis.symbol)


def _along(x: Axis, outer: tuple[Axis, ...], stores: list[Store], reduces: list[Reduce], nodes: list[Value], facts: Facts) -> Phase | None:
    """The phase with `x` as the vector axis."""
    length = static_product((x.extent,))
    if length is None or length < LEAST:
        return None
    sections: list[Section] = []
    new: dict[int, Value] = {}
    for number, reduce in enumerate(reduces):
        window = _window(reduce, x, facts)
        if window is None:
            return None
        section, value = _two_steps(reduce, window, x, f"{stores[0].buffer}_{number}", facts)
        sections.append(section)
        new[id(reduce)] = value
    for node in nodes:
        if id(node) not in new:
            new[id(node)] = rebuild(node, new)
    last = Section((x,), stores=tuple(rebuild_store(s, new) for s in stores))
    return Phase(outer, (*sections, last), across=_across(x, outer, stores))


def _across(x: Axis, outer: tuple[Axis, ...], stores: Sequence[Store]) -> Axis | None:
    """The axis along which all results are consecutive, where they are not along `x`."""
    steps = [stride_along(sympy.sympify(s.index), x.symbol) for s in stores]
    if int(x.extent) > MOST_TURNED or any(s.gathers or s.mask is not None for s in stores) or any(s in (None, 0, 1) for s in steps):
        return None
    found = [a for a in outer if all(stride_along(sympy.sympify(s.index), a.symbol) == 1 for s in stores)]
    return found[0] if found and (not known(found[0].extent) or int(found[0].extent) >= LEAST) else None


def _window(reduce: Reduce, x: Axis, facts: Facts) -> Window | None:
    """How the reduction slides along `x`, where two steps are cheaper than one."""
    inside = list(walk(reduce.value))
    if reduce.op not in OPS or len(reduce.axes) < 2 or any(isinstance(n, Reduce) for n in inside):
        return None
    exprs = [n.index for n in inside if isinstance(n, Load)] + [n.expr for n in inside if isinstance(n, Index)]
    if x.symbol not in facts.deps(reduce) or any(n.gathers for n in inside if isinstance(n, Load)):
        return None
    for along in reversed(reduce.axes):
        pair = _pace(exprs, x, along)
        points = static_product(a.extent for a in reduce.axes)
        own = static_product((along.extent,))
        if pair is None or points is None or own is None or max(own, points // own) > UNROLL_LIMIT:
            continue
        length, (step, pace) = int(x.extent), pair
        columns = step * (length - 1) + pace * (own - 1) + 1
        if columns <= ROW_LIMIT and columns <= length * own and points > own:
            return Window(along, step, pace)
    return None


def _pace(exprs: Iterable[sympy.Expr], x: Axis, along: Axis) -> tuple[int, int] | None:
    """`step` and `pace`: steps of both axes in every expression that has one of them are multiples of these."""
    found: tuple[int, int] | None = None
    for expr in map(sympy.sympify, exprs):
        steps = [stride_along(expr, a.symbol) for a in (x, along)]
        if steps == [0, 0]:
            continue
        if not all(isinstance(s, sympy.Integer) and s > 0 for s in steps):
            return None
        a, b = (int(s) for s in steps if s is not None)
        pair = (a // gcd(a, b), b // gcd(a, b))
        if found is not None and pair != found:
            return None
        found = pair
    return found


def _two_steps(reduce: Reduce, window: Window, x: Axis, tag: str, facts: Facts) -> tuple[Section, Value]:
    """The section that fills the row, and the value that takes the place of the reduction."""
    length, own = int(x.extent), int(window.along.extent)
    columns = window.step * (length - 1) + window.pace * (own - 1) + 1
    column = Axis(axis_symbol(f"{x.symbol}_column_{tag}"), columns)
    placed: Mapping[sympy.Symbol, sympy.Expr] = {x.symbol: column.symbol / window.step, window.along.symbol: sympy.S.Zero}
    value = substitute(reduce.value, placed, facts)
    rest = tuple(a for a in reduce.axes if a is not window.along)
    row = Buffer(f"row_{tag}", reduce.dtype.compute, (columns,), contiguous_strides((columns,)))
    filled = Store(row.name, column.symbol, Reduce(reduce.op, value, rest, reduce.dtype))
    place = window.step * x.symbol + window.pace * window.along.symbol
    kind: DType = reduce.dtype.compute
    return Section((column,), stores=(filled,), row=row), Reduce(reduce.op, Load(row.name, place, kind), (window.along,), reduce.dtype)
