"""The innermost loop in up to three pieces: the longest, in which the masks of borders and of parts are decided, and what lies beside it.

g++ vectorises no load under a condition that changes along the loop. Inside of a padded image the condition always holds. Where that is
the case is a number (`in_segments`), or outer axes decide it (`around_masks`): the column of a window that moves over an image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import sympy

from precast.codegen.common.decided import FALSE, TRUE, Ranges, decided, difference, position
from precast.codegen.common.index_facts import free_symbols, stride_along
from precast.codegen.common.value_facts import Facts, rebuild, rebuild_store
from precast.codegen.cpp.planning.sections import Cuts, Section
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Axis, Const, Load, Reduce, Scan, Size, Value, operands, walk
from precast.lowering.ir.ranges import interval
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.sympy_calls import expand

SHORT = 16
"""Points below which a piece is not worth a loop of its own."""
MOST_CASES = 4
"""Pieces of an outer axis that are worth a copy each of the loops within."""
MOST = 0.75
"""Share of a loop from which on a part of it with fixed ends is rather taken than a larger one whose ends show at run time."""
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


def around_masks(section: Section, outer: tuple[Axis, ...], facts: Facts, fixed: bool) -> list[Section]:
    """The section in up to three parts of its only axis, or as it is where that leaves a load under a mask that changes along the axis.
    `fixed`: rather in parts whose ends are numbers, where masks hold for most points whatever the outer axes are.
    """
    axis, stores = section.axes[-1], section.stores
    begin, end = section.span or (0, axis.extent)
    others = section.reduces or section.kept or section.positions or any(s.mode != "set" for s in stores)
    if len(section.axes) > 1 or others or (isinstance(end, int | sympy.Integer) and end - begin < SHORT):
        return [section]
    nodes = list(walk(*(root for s in stores for root in store_roots(s))))
    bound = {a.symbol for n in nodes if isinstance(n, Reduce) for a in n.axes}
    conditions = {id(c): c for mask in _changing_masks(nodes, axis, facts) for c in _conjuncts(mask)}
    cuts = {key: cut for key, c in conditions.items() if (cut := _cut(c, axis, bound)) is not None}
    ranges = {a.symbol: (0, int(a.extent) - 1) for a in (*outer, axis) if isinstance(a.extent, int | sympy.Integer)}
    inside = _where(section, nodes, dict.fromkeys(cuts, TRUE), ranges)
    if not cuts or _changing_masks(walk(*(root for s in inside.stores for root in store_roots(s))), axis, facts):
        return [section]
    low, high = ({key: at for key, (is_low, at) in cuts.items() if is_low is side} for side in (True, False))
    always = _always(list(low.values()), list(high.values()), (begin, end), ranges) if fixed else None
    if always is not None:
        spans = [(int(begin), always[0]), always, (always[1], int(end))]
        parts = [replace(inside if span is always else section, span=span) for span in spans if span[0] < span[1]]
        return [parts[0], *(replace(s, row=None) for s in parts[1:])]
    places = Cuts(tuple(dict.fromkeys(low.values())), tuple(dict.fromkeys(high.values())), 1)
    parts = [replace(inside, cuts=places)]
    for part, side in ((0, low), (2, high)):  # a condition that is the only one on its side does not hold beyond it
        if side:
            beside = _where(section, nodes, dict.fromkeys(side, FALSE), ranges) if len(set(side.values())) == 1 else section
            parts.insert(part, replace(beside, cuts=replace(places, part=part)))
    return [parts[0], *(replace(s, row=None) for s in parts[1:])]


def _always(low: list[sympy.Expr], high: list[sympy.Expr], span: tuple[Size, Size], ranges: Ranges) -> tuple[int, int] | None:
    """The part of a loop that lies within all these cuts, whatever they are, if that is most of it."""
    bounds = [interval(sympy.sympify(at), ranges) for at in (*low, *high)]
    known = [b for b in bounds if b is not None]
    begin, end = span
    if len(known) < len(bounds) or not isinstance(begin, int | sympy.Integer) or not isinstance(end, int | sympy.Integer):
        return None
    first = max([int(begin), *(b[1] for b in known[: len(low)])])
    last = min([int(end), *(b[0] for b in known[len(low) :])])
    return (first, last) if last - first >= MOST * (int(end) - int(begin)) else None


def _changing_masks(nodes: Iterable[Value], axis: Axis, facts: Facts) -> list[Value]:
    """Masks of loads that change along the axis."""
    masks = [n.mask for n in nodes if isinstance(n, Load) and n.mask is not None]
    return [m for m in masks if axis.symbol in facts.deps(m)]


def _where(section: Section, nodes: Iterable[Value], known: Mapping[int, Value], ranges: Ranges) -> Section:
    """The section as it is where conditions (by id) are as `known`. `nodes`: all of its values, operands before users."""
    new: dict[int, Value] = {}
    for node in nodes:
        changed = any(new[id(o)] is not o for o in operands(node))
        new[id(node)] = known.get(id(node)) or (rebuild(node, new) if changed else node)
    stores = [rebuild_store(s, new) for s in section.stores]
    simple = decided({id(r): r for s in stores for r in store_roots(s)}, ranges)
    return replace(section, stores=tuple(rebuild_store(s, simple) for s in stores))


def _conjuncts(mask: Value) -> list[Value]:
    """The conditions that hold where a mask does."""
    found, stack = [], [mask]
    while stack:
        node = stack.pop()
        if isinstance(node, Alu) and node.op is Op.AND:
            stack.extend(node.args)
        else:
            found.append(node)
    return found


def _cut(node: Value, axis: Axis, bound: set[sympy.Symbol]) -> tuple[bool, sympy.Expr] | None:
    """Of a comparison: whether it holds from a position along the axis on (else: below one), and that position."""
    expr = difference(node)
    step = None if expr is None else stride_along(expr, axis.symbol)
    if expr is None or not isinstance(step, sympy.Integer) or step == 0:
        return None
    rest = expand(expr - step * axis.symbol)
    if free_symbols(rest) & (bound | {axis.symbol}):
        return None
    if step > 0:  # step * x + rest >= 0
        return True, expand(-ix.floordiv(rest, int(step), ()))
    return False, expand(ix.floordiv(rest, -int(step), ()) + 1)
