"""Sums of columns within the loop over rows that reads the same matrix: each block of rows has sums of its own, which are then added.

    for block of rows (parallel):
      sums[block, :] = 0
      for row of block: sections of the row; the last one also adds to sums[block, column]
    for column: result = sum over blocks of sums[block, column]

So a matrix is read from memory once for what is made of its rows and of its columns. Blocks depend on the sizes only, and so do results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from precast.codegen.common.value_facts import Facts, rebuild, rebuild_store, substitute
from precast.codegen.cpp.planning.sections import Columns, Phase, Section
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Buffer, Load, Reduce, Scan, Store, Value, axis_symbol, walk
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ir.substitution import shared_axis

FEW, MOST = 32, 512
"""Rows of a block. Of fewer the sums of blocks would be worth mentioning beside the matrix; of more an f32 would add up too many."""

BLOCKS = 64
"""Blocks that feed the threads, where there are rows enough."""

LEAST_BLOCKS = 8
"""Blocks below which threads would rather have rows to share."""

WIDEST = 1 << 14
"""Columns up to which a block's sums stay in the second cache while its rows are read."""


def what_must_hold(columns: Columns) -> list[tuple[Axis, str]]:
    """Comparisons of sizes that show at run time only, without which both phases stand apart."""
    limits = ((columns.row, f">= {LEAST_BLOCKS * FEW}"), (columns.column, f"<= {WIDEST}"))
    return [(axis, limit) for axis, limit in limits if not _known(axis)]


def with_columns(phases: Sequence[Phase], facts: Facts) -> list[Phase]:
    """Phases of column sums within those of rows that read what they read."""
    found: list[Phase] = []
    for phase in phases:
        for number, rows in enumerate(found):
            merged = _merged(rows, phase, facts)
            if merged is not None:
                found[number] = merged
                break
        else:
            found.append(phase)
    return found


def _known(axis: Axis) -> bool:
    return isinstance(axis.extent, int | sympy.Integer)


def _merged(rows: Phase, sums: Phase, facts: Facts) -> Phase | None:
    """Both as one phase, where `rows` runs over one axis of rows and in the end over one of columns."""
    if rows.columns is not None or rows.lane is not None or rows.tile is not None or len(rows.outer) != 1:
        return None
    if sums.lane is None or sums.turned or sums.outer != (sums.lane,) or len(sums.sections) != 2:
        return None
    place = max((n for n, s in enumerate(rows.sections) if s.axes), default=0)  # behind it are stores of one element a row
    (reducing, final), last, row, column = sums.sections, rows.sections[place], rows.outer[0], sums.lane
    if (
        final.axes
        or final.reduces
        or not last.stores
        or len(reducing.axes) != 1
        or reducing.axes[0].extent != row.extent
        or last.axes != (column,)
    ):
        return None
    if reducing.stores or last.reduces or last.span is not None or not _plain(rows, sums):
        return None
    if any(r.op is not ReduceOp.SUM or r.dtype not in (DType.F32, DType.F64) for r in reducing.reduces):
        return None
    if (_known(row) and int(row.extent) < LEAST_BLOCKS * FEW) or (_known(column) and int(column.extent) > WIDEST):
        return None
    names = {reducing.axes[0].symbol: row.symbol}
    values = [substitute(r.value, names, facts) for r in reducing.reduces]
    if not _matrices(values, row, column, facts) <= _matrices([v for s in last.stores for v in store_roots(s)], row, column, facts):
        return None
    return _joined(rows, sums, values, place)


def _plain(rows: Phase, sums: Phase) -> bool:
    """Whether both only set elements, and neither reads or writes what the other writes."""
    stores = [s for phase in (rows, sums) for section in phase.sections for s in section.stores]
    roots = [v for s in stores for v in store_roots(s)] + [r.value for p in (rows, sums) for s in p.sections for r in s.reduces]
    nodes = list(walk(*roots))
    written = [s.buffer for s in stores]
    read = {n.buffer for n in nodes if isinstance(n, Load)}
    distinct = len(set(written)) == len(written) and not read & set(written)
    return distinct and all(s.mode == "set" for s in stores) and not any(isinstance(n, Scan) for n in nodes)


def _matrices(roots: Sequence[Value], row: Axis, column: Axis, facts: Facts) -> set[Load]:
    """The loads of what differs along both axes."""
    both = {row.symbol, column.symbol}
    return {n for n in walk(*roots) if isinstance(n, Load) and facts.deps(n) >= both}


def _joined(rows: Phase, sums: Phase, values: Sequence[Value], place: int) -> Phase:
    """`rows` with the sums in the section at `place`."""
    reducing, final = sums.sections
    last = rows.sections[place]
    row, column = rows.outer[0], last.axes[0]
    step = min(MOST, max(FEW, -(-int(row.extent) // BLOCKS))) if _known(row) else FEW
    blocks = ix.plain(ix.floordiv(sympy.sympify(row.extent) + step - 1, step, ()))
    block = shared_axis(axis_symbol(f"{row.symbol}_block"), blocks)
    parts: list[tuple[Buffer, Buffer]] = []
    adds: list[Store] = []
    wholes: list[Reduce] = []
    for reduce, value in zip(reducing.reduces, values, strict=True):
        name = f"sums_{final.stores[0].buffer}_{len(parts)}"
        own = Buffer(f"{name}_of_block", reduce.dtype, (column.extent,), (1,))
        every = Buffer(name, reduce.dtype, (blocks, column.extent), (column.extent, 1))
        parts.append((own, every))
        adds.append(Store(own.name, column.symbol, value, "add"))
        at = block.symbol * column.extent + column.symbol
        wholes.append(Reduce(ReduceOp.SUM, Load(name, at, reduce.dtype), (block,), reduce.dtype))
    new: dict[int, Value] = {id(r): w for r, w in zip(reducing.reduces, wholes, strict=True)}
    for node in walk(*(root for s in final.stores for root in store_roots(s))):
        if id(node) not in new:
            new[id(node)] = rebuild(node, new)
    ends = Section((), stores=tuple(rebuild_store(s, new) for s in final.stores))
    whole = Phase((column,), (Section((block,), reduces=tuple(wholes)), ends), column)
    sections = (*rows.sections[:place], replace(last, stores=(*last.stores, *adds)), *rows.sections[place + 1 :])
    columns = Columns(row, column, step, blocks, tuple(parts), whole, (rows, sums))
    return replace(rows, sections=sections, columns=columns)


__all__ = ["what_must_hold", "with_columns"]
