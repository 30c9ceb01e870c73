"""Loops of running reductions: the scanned axis innermost, or above a tile of lanes of another axis.

A loop along the scanned axis is no vector's: each step needs the one before it. Where memory runs along that axis and each point takes long
(an exponential that is added up), several rows run side by side as lanes, in square blocks that are turned on the way in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.common.value_facts import Facts
from precast.codegen.cpp.planning.sections import MOST_TILES, Phase, Section, loads_in, score
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Load, Reduce, Scan, Store, walk

TILE = 32
"""Side of a block of rows that are turned: 32 rows of 32 f32 values are 4 KiB on each side, well within the first cache."""

FEW_ROWS = 8
"""Rows below which turning blocks costs more than what their rows gain side by side."""

COSTLY = 14
"""Instructions of a point from which turning pays: turned, a point costs some 5 more and its own only a lane's share. A sum alone takes as
long as reading its row; an extreme is a branch that is seldom taken (`row_scan_lines`)."""

SHORT_SCAN = 16
"""Points of a scanned axis below which processors find the next row's work by themselves."""


def scan_phase(axes: tuple[Axis, ...], axis: Axis, stores: list[Store], facts: Facts) -> Phase:
    """The loops of stores that scan along `axis`.

    A scan that is the same in every lane has its place outside of the lanes' loop, where an accumulator per lane has no meaning.
    """
    roots = [v for s in stores for v in store_roots(s)]
    indices = [load.index for load in loads_in(roots)] + [s.index for s in stores]
    outer = tuple(a for a in axes if a is not axis)
    scans = [facts.deps(node) for node in walk(*roots) if isinstance(node, Scan)]
    lanes = [a for a in outer if all(a.symbol in deps for deps in scans)]
    lane = max(lanes, key=lambda a: score(a, indices), default=None)
    turned = False
    if lane is None or score(lane, indices) <= score(axis, indices):
        lane = next((a for a in reversed(lanes) if _turns(a, axis, stores, facts)), None)
        turned = lane is not None
    if lane is not None:
        outer = (*(a for a in outer if a is not lane), lane)
    return Phase(outer, (Section((axis,), stores=tuple(stores)),), lane, turned=turned)


def row_by_row(phase: Phase) -> Phase:
    """A phase of turned blocks without them."""
    return replace(phase, lane=None, turned=False)


def _turns(lane: Axis, axis: Axis, stores: Sequence[Store], facts: Facts) -> bool:
    """Whether each access is made of vectors of lanes once what runs along `axis` is turned, and what is computed there is worth it."""
    if _below(lane, FEW_ROWS) or _below(axis, SHORT_SCAN) or any(s.mode != "set" for s in stores):
        return False
    if sum(facts.cost(v) for s in stores for v in store_roots(s)) < COSTLY:
        return False
    nodes = list(walk(*(v for s in stores for v in store_roots(s))))
    accesses: list[Load | Store] = [*stores, *(n for n in nodes if isinstance(n, Load))]
    if any(isinstance(n, Reduce) for n in nodes) or any(a.gathers or a.mask is not None for a in accesses):
        return False
    written = {s.buffer: s.index for s in stores}
    if any(a.buffer in written and written[a.buffer] != a.index for a in accesses):
        return False
    across = 0
    for access in accesses:
        index = sympy.sympify(access.index)
        step, stride = stride_along(index, axis.symbol), stride_along(index, lane.symbol)
        if step == 1 and stride not in (0, 1, None):
            across += 1
        elif step is None or not (stride == 0 or (stride == 1 and step == 0)):
            return False
    return 0 < across <= MOST_TILES


def _below(axis: Axis, least: int) -> bool:
    return isinstance(axis.extent, int | sympy.Integer) and int(axis.extent) < least


__all__ = ["FEW_ROWS", "row_by_row", "scan_phase"]
