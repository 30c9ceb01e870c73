"""What plans of loops are made of: sections in phases; and which axis of a section memory runs along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.cpp.planning.short_rows import ShortRows
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Buffer, Gather, Load, Reduce, Scan, Size, Store, Value, operands, walk

UNROLL_LIMIT = 32
"""Reductions of at most this many points are unrolled into the body of the surrounding loop."""

LANES = 64
"""Lanes of a tile along an outer axis: four AVX-512 registers of f32, enough to hide latency."""

ROW_LIMIT = 8192
"""Longest row buffer, in elements: 32 KiB of f32 on the stack, which stays in the first two caches."""


MOST_TILES = 8
"""Buffers of one transposition block: of f32 they take 32 KiB, the first cache of most processors."""


@dataclass(frozen=True)
class Cuts:
    """Where along the last axis all masks hold, as outer axes decide: from the largest of `low` on, and below the least of `high`."""

    low: tuple[sympy.Expr, ...]
    high: tuple[sympy.Expr, ...]
    part: int
    """0: what lies before, 1: where they hold, 2: what lies behind."""


@dataclass(frozen=True)
class Section:
    """Loops over `axes` (vector axis last) whose body feeds `reduces` and makes `stores`."""

    axes: tuple[Axis, ...]
    reduces: tuple[Reduce, ...] = ()
    stores: tuple[Store, ...] = ()
    kept: tuple[Value, ...] = ()
    """Costly values over the section's one axis that a later section needs again: kept in a row buffer."""
    row: Buffer | None = None
    """A row buffer that the section's stores fill."""
    span: tuple[int, int] | None = None
    """The piece of the last axis that the section runs over; None: all of it."""
    case: tuple[Axis, int, int] | None = None
    """An axis of the loops around, and the piece of it in which the section runs; None: it runs always."""
    cuts: Cuts | None = None
    """The part of that piece, if only one."""
    positions: tuple[tuple[Load, Gather], ...] = ()
    """Gathers over the section's one axis whose positions a later section needs: kept in a row buffer."""
    ahead: tuple[tuple[Load, Gather], ...] = ()
    """Gathers from all over rows that the first axis numbers: lines of the rows that come next are asked for."""
    room: int | None = None
    """Points of each row buffer, where the section runs over a block of its axis; None: the axis's extent."""


@dataclass(frozen=True)
class Phase:
    """Outer loops around sections. `lane` is the outer axis that is vectorised in tiles, if any, of `lanes` points."""

    outer: tuple[Axis, ...]
    sections: tuple[Section, ...]
    lane: Axis | None = None
    lanes: int = LANES
    tile: tuple[Axis, Axis] | None = None
    """Axes of the only section that run in square blocks, because reads run along one and writes along the other."""
    rows: ShortRows | None = None
    """The axes of the only section as short rows that run as one range."""
    across: Axis | None = None
    """The outer axis along which memory runs where the last section stores: it runs in blocks, whose results are turned on the way."""
    turned: bool = False
    """Whether memory runs along the only section's scanned axis and not along `lane`: both run in square blocks, turned on the way."""
    columns: Columns | None = None
    """Sums of columns that the last section adds to, see `column_sums.py`."""
    blocks: tuple[tuple[Axis, int], ...] = ()
    """Axes of sections that run in blocks of these widths, because some of the sections run once for each block."""


@dataclass(frozen=True)
class Columns:
    """`row` in blocks of `step`; `parts`: a block's sums, and those of all blocks; `whole` makes the results of the latter."""

    row: Axis
    column: Axis
    step: int
    blocks: Size
    parts: tuple[tuple[Buffer, Buffer], ...]
    whole: Phase
    apart: tuple[Phase, Phase]
    """The two phases without common loops, for sizes where those are better."""


def loads_in(roots: Sequence[Value]) -> list[Load]:
    """Loads evaluated in a body: not those inside reductions that are made elsewhere."""
    found: list[Load] = []
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            found.append(node)
        stack.extend(operands(node))
    return found


def _fit(axis: Axis) -> float:
    """How well loops of this extent fill vectors."""
    extent = int(axis.extent) if isinstance(axis.extent, int | sympy.Integer) else 64
    return min(1.0, extent / 32)


def score(axis: Axis, indices: Sequence[sympy.Expr]) -> float:
    """Share of memory accesses that run along `axis` with step one (or stay), scaled by how well its extent fills vectors."""
    if not indices:
        return 0.0
    good, contiguous = 0.0, False
    for index in indices:
        step = stride_along(index, axis.symbol)
        if step == 1:
            good, contiguous = good + 1, True
        elif step == 0:
            good += 0.5
    return good / len(indices) * _fit(axis) if contiguous else 0.0


def vector_last(axes: tuple[Axis, ...], section: Section) -> tuple[Axis, ...]:
    """`axes` with the one along which memory runs moved innermost; scans keep their axis innermost."""
    if len(axes) < 2:
        return axes
    roots = [r.value for r in section.reduces] + [v for s in section.stores for v in store_roots(s)]
    scans = [n.axis for n in walk(*roots) if isinstance(n, Scan)]
    if scans:
        return (*(a for a in axes if a is not scans[0]), scans[0])
    indices = [load.index for load in loads_in(roots)] + [s.index for s in section.stores] * 2
    best = max(reversed(axes), key=lambda a: score(a, indices))
    return (*(a for a in axes if a is not best), best) if score(best, indices) > 0 else axes
