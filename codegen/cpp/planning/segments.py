"""The innermost loop in up to three pieces: the longest, in which the masks of borders and of parts are decided, and what lies beside it.

g++ vectorises no load under a condition that changes along the loop. Inside of a padded image the condition always holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import sympy

from precast.codegen.common.decided import Ranges, decided, difference, position
from precast.codegen.common.index_facts import free_symbols, stride_along
from precast.codegen.common.value_facts import rebuild_store
from precast.codegen.cpp.planning.sections import Section
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Alu, Axis, Const, Reduce, Scan, Value, walk
from precast.lowering.ir.ranges import interval
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.sympy_calls import expand

SHORT = 16
"""Points below which a piece is not worth a loop of its own."""
MOST_CASES = 4
"""Pieces of an outer axis that are worth a copy each of the loops within."""
DEPTH = 3
"""How often the longest piece is cut again, by what is known within it: a reflection is an absolute value of another."""


def in_segments(section: Section, outer: Iterable[Axis]) -> list[Section]:
    """The section in pieces of its last axis, or as it is where no mask is decided along that axis. It only stores."""
    axis = section.axes[-1]
    if not isinstance(axis.extent, int | sympy.Integer) or section.reduces or section.kept or any(s.mode != "set" for s in section.stores):
        return [section]
    extent = int(axis.extent)
    nodes = list(walk(*(root for s in section.stores for root in store_roots(s))))
    bound = [a for v in nodes if isinstance(v, Reduce) for a in v.axes]
    ranges = {a.symbol: (0, int(a.extent) - 1) for a in (*outer, *section.axes, *bound) if isinstance(a.extent, int | sympy.Integer)}
    inside, (low, high) = section, (0, extent)
    for _ in range(DEPTH):
        nodes = list(walk(*(root for s in inside.stores for root in store_roots(s))))
        cuts = _cuts(nodes, axis, {a.symbol for a in bound}, ranges)
        places = [low, *sorted(c for c in cuts if low < c < high), high]
        longest = max(zip(places, places[1:], strict=False), key=lambda piece: piece[1] - piece[0])
        if longest[1] - longest[0] < SHORT or longest == (low, high):
            break
        low, high = longest
        inside = _piece(section, longest, ranges)
    if inside is section:
        return [section]
    pieces = [(0, low), (low, high), (high, extent)]
    found = [_piece(section, piece, ranges) for piece in pieces if piece[0] < piece[1]]
    return [found[0], *(replace(s, row=None) for s in found[1:])]  # the row buffer is declared once


def in_cases(section: Section, outer: Iterable[Axis]) -> list[Section]:
    """The section once for each piece of an outer axis within which all choices between two computed values are decided: a concatenation
    then reads and computes the part that it is in, not every part. As it is where no such choice is made, or too many are.
    """
    if section.reduces or section.kept or section.row is not None or any(s.mode != "set" for s in section.stores):
        return [section]
    every = [a for a in (*outer, *section.axes) if isinstance(a.extent, int | sympy.Integer)]
    ranges = {a.symbol: (0, int(a.extent) - 1) for a in every}
    nodes = list(walk(*(root for s in section.stores for root in store_roots(s))))
    if any(isinstance(n, Reduce | Scan) for n in nodes):  # what was made before is known by the object that it is
        return [section]
    choices = [n.args[0] for n in nodes if isinstance(n, Alu) and n.op is Op.WHERE and not any(isinstance(a, Const) for a in n.args[1:])]
    for axis in (a for a in outer if a.symbol in ranges):
        extent = int(axis.extent)
        cuts = [c for c in sorted(_cuts(walk(*choices), axis, set(), ranges)) if 0 < c < extent]
        if 0 < len(cuts) < MOST_CASES:
            places = [0, *cuts, extent]
            pieces = zip(places, places[1:], strict=False)
            return [replace(_within(section, {**ranges, axis.symbol: (low, high - 1)}), case=(axis, low, high)) for low, high in pieces]
    return [section]


def _within(section: Section, ranges: Ranges) -> Section:
    """The section as it is where the axes are within `ranges`."""
    roots = {id(r): r for s in section.stores for r in store_roots(s)}
    new = decided(roots, ranges)
    return replace(section, stores=tuple(rebuild_store(s, new) for s in section.stores))


def _piece(section: Section, piece: tuple[int, int], ranges: Ranges) -> Section:
    within = {**ranges, section.axes[-1].symbol: (piece[0], piece[1] - 1)}
    return replace(_within(section, within), span=piece)


def _cuts(nodes: Iterable[Value], axis: Axis, bound: set[sympy.Symbol], ranges: Ranges) -> set[int]:
    """Positions along the axis from which on a comparison, or the sign under an absolute value, is decided, whatever bound axes are."""
    found: set[int] = set()
    for node in nodes:
        expr = difference(node)
        if expr is None and isinstance(node, Alu) and node.op is Op.ABS:
            expr = position(node.args[0])
        if expr is None or axis.symbol not in expr.free_symbols:
            continue
        step = stride_along(expr, axis.symbol)
        if not isinstance(step, sympy.Integer) or step == 0:
            continue
        rest = expand(expr - step * axis.symbol)
        between = interval(rest, ranges) if free_symbols(rest) <= bound else None
        if between is None:
            continue
        for edge in between:  # step * x + edge >= 0
            found.add(-(edge // int(step)) if step > 0 else edge // -int(step) + 1)
    return found
