"""What only the vector axis decides, once for several rows: positions of gathers, and values that take some instructions.

    for x in a block: row[x] = checked index[x]
    for r in a few rows: for x in the block: out[r, x] = t[r, row[x]]

A selection of columns then reads and checks its indices once for `ROWS` rows, an interpolation computes its positions and shares as often.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from precast.codegen.common.index_facts import replace_symbols, stride_along
from precast.codegen.common.value_facts import Facts, own_cost
from precast.codegen.cpp.planning.sections import ROW_LIMIT, Phase, Section
from precast.codegen.cpp.planning.segments import in_segments
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Const, Gather, Index, Load, Reduce, Scan, Store, Value, operands, walk
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import known

ROWS = 16
"""Rows that share what is made once for a block."""
FEW = 8
"""Points of an axis below which it is none of rows, or of columns."""
COSTLY = 8.0
"""Instructions from which on a value is rather read from a buffer."""
LINE = 64
"""Bytes of a cache line."""
SHORT_ROW = 1 << 14
"""Bytes of a row of which the first caches hold several."""
MOST = 8
"""Row buffers of one block."""


def in_columns(ordered: tuple[Axis, ...], stores: list[Store], facts: Facts) -> Phase | None:
    """The phase of pointwise stores that have such values along the last axis; None for any others, and where most of what is gathered
    turns out to lie at consecutive places.
    """
    x = ordered[-1]
    rows = next((a for a in reversed(ordered[:-1]) if _at_least(a, FEW)), None)
    if rows is None or not _at_least(x, FEW) or any(s.mode != "set" or s.gathers for s in stores):
        return None
    alone = _Alone(ordered, stores, facts)
    positions, kept = alone.positions(), alone.values()
    count = len(positions) + len(kept)
    if not 0 < count <= MOST or len(in_segments(Section((x,), stores=tuple(stores)), ordered[:-1])) > 1:
        return None
    whole = known(x.extent) and int(x.extent) * count <= ROW_LIMIT
    width = int(x.extent) if whole else ROW_LIMIT // 2 // MOST
    first = Section((x,), kept=kept, positions=positions, room=width)
    outer = tuple(a for a in ordered[:-1] if a is not rows)
    return Phase(
        outer,
        (first, Section((rows, x), stores=tuple(stores), ahead=_from_all_over(positions, rows, x))),
        blocks=((rows, ROWS), *(() if whole else ((x, width),))),
    )


def _from_all_over(positions: Sequence[tuple[Load, Gather]], rows: Axis, x: Axis) -> tuple[tuple[Load, Gather], ...]:
    """Gathers that take at least as many elements as a row has cache lines, one for each row: no prefetcher foresees their order."""
    found: dict[tuple[str, sympy.Expr], tuple[Load, Gather]] = {}
    for load, gather in positions:
        along, down, across = (stride_along(load.index, s) for s in (gather.symbol, rows.symbol, x.symbol))
        if (
            not known(gather.size, x.extent)
            or len(load.gathers) > 1
            or load.mask is not None
            or along != 1
            or across != 0
            or down in (0, None)
        ):
            continue
        nbytes = int(gather.size) * load.dtype.itemsize
        if nbytes <= SHORT_ROW and nbytes <= LINE * int(x.extent):
            found[load.buffer, replace_symbols(load.index, {gather.symbol: sympy.S.Zero})] = load, gather
    return tuple(found.values())


def _at_least(axis: Axis, points: int) -> bool:
    return not known(axis.extent) or int(axis.extent) >= points


class _Alone:
    """The values of some stores that depend on the last of the axes alone."""

    def __init__(self, ordered: tuple[Axis, ...], stores: Sequence[Store], facts: Facts) -> None:
        self.facts = facts
        self.roots = [root for s in stores for root in store_roots(s)]
        self.nodes = list(walk(*self.roots))
        axes = {a.symbol for n in self.nodes if isinstance(n, Reduce) for a in n.axes} | {a.symbol for a in ordered}
        self.others = axes - {ordered[-1].symbol}
        self.symbol = ordered[-1].symbol
        self.made = {id(n) for n in self.nodes if self._alone(n)}

    def _alone(self, node: Value) -> bool:
        deps = self.facts.deps(node)
        return self.symbol in deps and not deps & self.others and not isinstance(node, Reduce | Scan)

    def positions(self) -> tuple[tuple[Load, Gather], ...]:
        found: dict[tuple[int, int], tuple[Load, Gather]] = {}
        for node in self.nodes:
            if isinstance(node, Load) and id(node) not in self.made:
                steady = node.mask is None or not self.facts.deps(node.mask) & self.others
                for gather in node.gathers:
                    if steady and id(gather.value) in self.made:
                        found[id(gather), id(node.mask)] = node, gather
        return tuple(found.values())

    def values(self) -> tuple[Value, ...]:
        """The largest ones that others need, but for positions."""
        positions = {id(g.value) for _, g in self.positions()}
        needed = {id(o): o for n in self.nodes if id(n) not in self.made for o in self._operands(n, positions)}
        needed |= {id(r): r for r in self.roots}
        return tuple(v for v in needed.values() if id(v) in self.made and self._costly(v))

    def _operands(self, node: Value, positions: set[int]) -> list[Value]:
        return [o for o in operands(node) if not (isinstance(node, Load) and id(o) in positions)]

    def _costly(self, value: Value) -> bool:
        if isinstance(value, Load | Const | Index) or value.dtype is DType.BOOL:
            return False
        inside = list(walk(value))
        return sum(map(own_cost, inside)) >= COSTLY and not any(isinstance(n, Reduce | Scan) for n in inside)
