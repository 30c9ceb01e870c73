"""How many lanes of an outer axis a phase of reductions takes at once: as many as the first cache holds results of.

    for l in a block: acc[l] = 0
    for r: for l in the block: acc[l] += x[r, l]

Memory is then read in long runs, which prefetchers follow, and few pages are touched at a time. Blocks of a few vectors read the same rows
a few lines at a time: sums of 1,024 columns in blocks of 64 take three times as long. Where later loops read the same elements again,
narrow blocks are better, because the second cache then holds a block's elements.
"""

from __future__ import annotations

from collections.abc import Sequence

from precast.codegen.common.value_facts import static_product
from precast.codegen.cpp.planning.sections import LANES, Phase
from precast.codegen.cpp.reductions import COMBINERS
from precast.lowering.ir.nodes import Reduce, Scan, walk
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import known

WIDEST = 1024
"""Lanes at most: a page of f32 in each row."""

ROOM = 1 << 14
"""Bytes of a block's accumulators: half of the first cache."""

ROWS_OF_CHUNK = 64
"""Rows at least of a chunk of wide lanes: its results are started, stored and combined, which takes the time of some rows."""

PIECES = 16
"""Pieces of work at least, where narrower blocks make as many."""


def lanes_at_once(phase: Phase) -> int:
    """The width of the phase's blocks of lanes: `LANES`, or more where one pass over memory is all that there is to do."""
    lane, first = phase.lane, phase.sections[0]
    if lane is None or phase.turned or not known(lane.extent) or int(lane.extent) <= LANES:
        return LANES
    plain = first.reduces and not (first.stores or first.kept or first.positions) and not any(s.axes for s in phase.sections[1:])
    around = static_product(a.extent for a in phase.outer if a is not lane)
    rows = static_product(a.extent for a in first.axes)
    if not plain or not around or not rows or any(isinstance(n, Scan) for r in first.reduces for n in walk(r.value)):
        return LANES
    extent = int(lane.extent)
    most = max(LANES, min(WIDEST, ROOM // _bytes_of_a_lane(first.reduces) // LANES * LANES))
    chunks = max(1, rows // ROWS_OF_CHUNK) if all(r.op in COMBINERS for r in first.reduces) else 1
    blocks = max(-(-extent // most), -(-PIECES // (around * chunks)))
    return max(LANES, -(-extent // (blocks * LANES)) * LANES)


def _bytes_of_a_lane(reduces: Sequence[Reduce]) -> int:
    """Of the accumulators of all reductions: the sum of few rows beside that of all, or an extreme beside a flag."""
    return sum(12 if r.dtype.compute is DType.F32 else 16 for r in reduces)
