"""From a `Kernel` to loop structure: phases of outer loops, each a list of sections (inner nests) that reduce or store.

    for outer axes (parallel):            one phase
      for section axes: accumulate        section 1: reductions that share their loop
      for section axes: accumulate        section 2: reductions that need section 1's results
      for section axes: store             last sections

Vectorisation is over a section's last axis ("inner") or, where memory runs along an outer axis, over a tile of that axis
with one accumulator a lane ("lanes"). The choice is made by stride analysis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from precast.codegen.common.index_facts import stride_along
from precast.codegen.common.value_facts import Facts, rebuild, rebuild_store, static_product, substitute
from precast.codegen.cpp.planning.column_sums import with_columns
from precast.codegen.cpp.planning.columns import in_columns
from precast.codegen.cpp.planning.interleaving import interleaved
from precast.codegen.cpp.planning.scan_loops import scan_phase
from precast.codegen.cpp.planning.sections import ROW_LIMIT, UNROLL_LIMIT, Phase, Section, loads_in, score, vector_last
from precast.codegen.cpp.planning.segments import around_masks, in_cases, in_segments
from precast.codegen.cpp.planning.short_rows import short_rows
from precast.codegen.cpp.planning.wide_lanes import lanes_at_once
from precast.codegen.cpp.planning.windows import in_rows
from precast.codegen.cpp.types import LIMITS
from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.ir.index import numel
from precast.lowering.ir.nodes import Alu, Axis, Cast, Const, Index, Kernel, Reduce, Scan, Store, Value, operands, walk
from precast.lowering.ir.scalars import TRANSCENDENTAL, DType, Op, ReduceOp
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.ir.sympy_calls import expand

Bound = dict[tuple[object, ...], tuple[Axis, ...]]
"""The axes that reductions over so many points are given, by extents: those of a kernel's phases are then the same objects."""


def plan(kernel: Kernel, facts: Facts) -> tuple[Phase, ...]:
    """Loop structure of `kernel`; stores that share outer loops and reductions share a phase."""
    groups: list[tuple[tuple[Axis, ...], list[Store]]] = []
    for store in kernel.stores:
        axes = kernel.axes if store.axes is None else tuple(a for a in kernel.axes if a in store.axes)
        for known, members in groups:
            if known == axes:
                members.append(store)
                break
        else:
            groups.append((axes, [store]))
    phases, made = _scalars(groups, facts)
    bound: Bound = {}
    for axes, stores in sorted(groups, key=lambda group: -len(group[0])):  # shorter ones may need the reductions of the longest
        _merge(phases, (None if made else in_rows(axes, stores, facts)) or _phase(axes, stores, facts, made, bound))
    return tuple(replace(_in_segments(phase, facts), lanes=lanes_at_once(phase)) for phase in with_columns(phases, facts))


MANY_ROWS = 64
"""Points of outer loops that feed the threads; where there are fewer, the innermost loop is shared among them, as one."""


def _in_segments(phase: Phase, facts: Facts) -> Phase:
    """The phase with its innermost loops in pieces, where masks are decided along them or along outer ones."""
    apart = phase.lane is not None or phase.tile or phase.rows is not None or phase.columns is not None
    if apart or any(not s.axes for s in phase.sections):
        return phase
    rows, sections = static_product(a.extent for a in phase.outer), phase.sections
    many = rows is not None and rows >= MANY_ROWS and len(phase.blocks) < 2
    if not any(s.kept or s.positions for s in sections):  # those name what later sections use
        sections = tuple(case for s in sections for case in in_cases(s, phase.outer))
    if many:
        sections = tuple(piece for s in sections for piece in in_segments(s, phase.outer))
    found = replace(phase, sections=tuple(part for s in sections for part in around_masks(s, phase.outer, facts, many)))
    buffers = {s.row.name for s in found.sections if s.row is not None}
    last = [s for s in found.sections if any(store.buffer not in buffers for store in s.stores)]
    return found if len(last) == 1 and last[0].span is None and last[0].cuts is None else replace(found, across=None)


def _scalars(groups: list[tuple[tuple[Axis, ...], list[Store]]], facts: Facts) -> tuple[list[Phase], frozenset[int]]:
    """Where some stores hold reductions per row and some one result in all: the latter come first, once, with the ids of their values."""
    hoisted = {id(r): (r, axes) for axes, stores in groups for r in _hoisted(axes, stores, facts)}
    whole = [r for r, axes in hoisted.values() if not _free(r, axes, facts) and r.op not in (ReduceOp.ARGMIN, ReduceOp.ARGMAX)]
    if not whole or len(whole) == len(hoisted):
        return [], frozenset()
    return [Phase((), tuple(_reduce_sections(whole, facts)))], frozenset(map(id, whole))


def _merge(phases: list[Phase], new: Phase) -> None:
    """Joins `new` to an earlier phase with the same outer loops and a common reduction."""
    made = {id(r) for s in new.sections for r in s.reduces}
    for number, old in enumerate(phases):
        common = made & {id(r) for s in old.sections for r in s.reduces}
        if common and old.outer == new.outer and old.lane is new.lane:
            extra = tuple(replace(s, reduces=tuple(r for r in s.reduces if id(r) not in common)) for s in new.sections)
            kept = tuple(s for s in extra if s.reduces or s.stores)
            phases[number] = replace(old, sections=(*old.sections, *kept))
            return
    phases.append(new)


def _phase(axes: tuple[Axis, ...], stores: list[Store], facts: Facts, made: frozenset[int], bound: Bound) -> Phase:
    hoisted = [r for r in _hoisted(axes, stores, facts) if id(r) not in made]
    indexed = [r for r in hoisted if r.op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX)]
    if indexed:
        return _phase(axes, _replace(stores, {id(r): _two_pass(r) for r in indexed}), facts, made, bound)
    if not hoisted:
        return _pointwise(axes, stores, facts)
    free = max((_free(r, axes, facts) for r in hoisted), key=len)
    hoisted = [r for r in hoisted if _free(r, axes, facts) <= free]
    outer = tuple(a for a in axes if a in free)
    inner = tuple(a for a in axes if a not in free)
    longer: dict[int, Value] = {id(r): found for r in hoisted if (found := _one_range(r, inner, facts)) is not r}
    if longer:
        return _phase(axes, _replace(stores, longer), facts, made, bound)
    stores, reduces = _rename(stores, hoisted, inner, facts, bound)
    lane = _lane_axis(outer, reduces, stores, facts)
    if lane is not None and any(lane not in _free(r, axes, facts) for r in reduces):
        lane = None  # a result that is the same for all lanes has its place before their loop
    if lane is not None:
        outer = (*(a for a in outer if a is not lane), lane)
    sections = _reduce_sections(reduces, facts)
    sections.append(Section(inner, stores=tuple(stores)))
    if lane is None:
        sections = [replace(s, axes=vector_last(s.axes, s)) for s in sections]
        if outer:  # without outer loops a section may be split over threads, each with its own part of the row
            sections = _keep_rows(sections, facts)
    return Phase(outer, tuple(sections), lane)


def _replace(stores: list[Store], swapped: dict[int, Value]) -> list[Store]:
    """`stores` with some values (by id) replaced."""
    new: dict[int, Value] = {}
    for node in walk(*(root for s in stores for root in store_roots(s))):
        new[id(node)] = rebuild(swapped.get(id(node), node), new)
    return [rebuild_store(s, new) for s in stores]


def _one_range(reduce: Reduce, inner: tuple[Axis, ...], facts: Facts) -> Reduce:
    """`reduce` with neighbouring axes made one where every index runs over them as over one range, unless the final loop has them apart."""
    nodes = list(walk(reduce.value))
    exprs = [e for e in map(index_expr, nodes) if e is not None]
    final = tuple(a.extent for a in inner)
    axes, place = list(reduce.axes), 0
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    if any(isinstance(n, Scan) for n in nodes):
        return reduce
    while place + 1 < len(axes) and tuple(a.extent for a in axes) != final:
        a, b = axes[place], axes[place + 1]
        steps = [(stride_along(e, a.symbol), stride_along(e, b.symbol)) for e in exprs]
        if all(s is not None and t is not None and expand(s - t * b.extent) == 0 for s, t in steps):
            axes[place : place + 2] = [shared_axis(b.symbol, numel((a.extent, b.extent)))]
            mapping[a.symbol] = sympy.S.Zero
            place = max(place - 1, 0)
        else:
            place += 1
    return Reduce(reduce.op, substitute(reduce.value, mapping, facts), tuple(axes), reduce.dtype) if mapping else reduce


def _two_pass(reduce: Reduce) -> Value:
    """An index reduction as the extreme value, then the least index that holds it: both vectorise, the direct form does not.

    A NaN wins, the first one: `MAX` yields NaN then, and only NaN elements match it.
    """
    extreme = ReduceOp.MIN if reduce.op is ReduceOp.ARGMIN else ReduceOp.MAX
    value = reduce.value
    best = Reduce(extreme, value, reduce.axes, value.dtype)
    points = static_product(a.extent for a in reduce.axes)
    kind = DType.I32 if points is not None and points < 2**31 - 1 else DType.I64
    place: sympy.Expr = sympy.S.Zero
    for axis in reduce.axes:
        place = place * axis.extent + axis.symbol
    match = Alu(Op.EQ, (value, best), DType.BOOL)
    if value.dtype.is_float:
        both = Alu(Op.AND, (Alu(Op.NE, (value, value), DType.BOOL), Alu(Op.NE, (best, best), DType.BOOL)), DType.BOOL)
        match = Alu(Op.OR, (match, both), DType.BOOL)
    found = Alu(Op.WHERE, (match, Index(place, kind), Const(LIMITS[kind][1], kind)), kind)
    least = Reduce(ReduceOp.MIN, found, reduce.axes, kind)
    return least if reduce.dtype is kind else Cast(least, reduce.dtype)


def _keep_rows(sections: list[Section], facts: Facts) -> list[Section]:
    """Marks what is worth a row buffer: transcendental work that two sections over the same single axis would both do. Whether a row of
    unknown length fits is seen at run time, see `rows_that_may_not_fit`.
    """
    made = {id(r) for s in sections for r in s.reduces}
    costly = [_costly(s, made) for s in sections]
    result: list[Section] = []
    for number, section in enumerate(sections):
        kept: list[Value] = []
        points = static_product(a.extent for a in section.axes)
        if len(section.axes) == 1 and (points is None or points <= ROW_LIMIT):
            later = {id(v) for n in range(number + 1, len(sections)) if sections[n].axes == section.axes for v in costly[n]}
            earlier = {id(v) for s in result for v in s.kept}
            kept = [v for v in costly[number] if id(v) in later and id(v) not in earlier and section.axes[0].symbol in facts.deps(v)]
            inside = {id(o) for v in kept for o in walk(v) if o is not v}
            kept = [v for v in kept if id(v) not in inside]
        result.append(replace(section, kept=tuple(kept)))
    return result


def rows_that_may_not_fit(phase: Phase) -> tuple[Axis, ...]:
    """Axes of unknown extent along which the phase keeps rows: it is written twice, with the rows and (`without_rows`) without them."""
    found = [s.axes[0] for s in phase.sections if s.kept and s.room is None]
    return tuple(dict.fromkeys(a for a in found if not isinstance(a.extent, int | sympy.Integer)))


def without_rows(phase: Phase) -> Phase:
    return replace(phase, sections=tuple(replace(s, kept=()) for s in phase.sections))


def _costly(section: Section, made: set[int]) -> list[Value]:
    """Transcendental values evaluated in a section's body."""
    found: list[Value] = []
    seen: set[int] = set()
    stack = [r.value for r in section.reduces] + [v for s in section.stores for v in store_roots(s)]
    while stack:
        node = stack.pop()
        if id(node) in seen or id(node) in made:
            continue
        seen.add(id(node))
        if isinstance(node, Alu) and node.op in TRANSCENDENTAL:
            found.append(node)
        if not isinstance(node, Reduce):
            stack.extend(operands(node))
    return found


def _free(reduce: Reduce, axes: Sequence[Axis], facts: Facts) -> frozenset[Axis]:
    deps = facts.deps(reduce)
    return frozenset(a for a in axes if a.symbol in deps)


def _hoisted(axes: tuple[Axis, ...], stores: Sequence[Store], facts: Facts) -> list[Reduce]:
    """Reductions worth a loop of their own before the final one: long, or invariant in some of the axes; operands first.

    One that differs along a scanned axis stays where it is: that axis runs in the final loop, which carries the scan's state.
    """
    symbols = {a.symbol for a in axes}
    found: dict[int, Reduce] = {}
    bound_somewhere: set[sympy.Symbol] = set()
    nodes = list(walk(*(root for s in stores for root in store_roots(s))))
    scanned = {node.axis.symbol for node in nodes if isinstance(node, Scan)}
    for node in nodes:
        if isinstance(node, Reduce):
            bound_somewhere |= {a.symbol for a in node.axes}
    for node in nodes:
        if not isinstance(node, Reduce):
            continue
        deps = facts.deps(node)
        if deps & (bound_somewhere - symbols):
            continue  # lives inside another reduction
        if deps & scanned:
            continue
        points = static_product(a.extent for a in node.axes)
        if deps >= symbols and points is not None and points <= UNROLL_LIMIT:
            continue
        found[id(node)] = node
    return list(found.values())


def _rename(
    stores: list[Store], hoisted: list[Reduce], inner: tuple[Axis, ...], facts: Facts, bound: Bound
) -> tuple[list[Store], list[Reduce]]:
    """Gives bound axes of equal extents the same axes, those of the final loop first, so that equal work is the same object."""
    chosen = dict(bound)
    if inner:
        chosen[tuple(a.extent for a in inner)] = inner
        bound.setdefault(tuple(a.extent for a in inner), inner)
    new: dict[int, Value] = {}
    wanted = {id(r) for r in hoisted}
    renamed: list[Reduce] = []
    for node in walk(*(root for s in stores for root in store_roots(s))):
        fresh = rebuild(node, new)
        if id(node) in wanted and isinstance(fresh, Reduce):
            target = chosen.setdefault(tuple(a.extent for a in fresh.axes), fresh.axes)
            if target is not fresh.axes and not _captures(fresh, target, facts):
                mapping = {a.symbol: t.symbol for a, t in zip(fresh.axes, target, strict=True)}
                fresh = Reduce(fresh.op, substitute(fresh.value, mapping, facts), target, fresh.dtype)
            renamed.append(fresh)
        new[id(node)] = fresh
    unique = list({id(r): r for r in renamed}.values())
    return [rebuild_store(s, new) for s in stores], unique


def _captures(reduce: Reduce, target: tuple[Axis, ...], facts: Facts) -> bool:
    """Whether renaming `reduce`'s axes to `target` would let an inner reduction bind them."""
    own = {a.symbol for a in reduce.axes}
    names = {a.symbol for a in target}
    if facts.deps(reduce.value) & names:
        return True
    return any(isinstance(n, Reduce) and facts.deps(n) & own and names & {a.symbol for a in n.axes} for n in walk(reduce.value))


def _reduce_sections(reduces: list[Reduce], facts: Facts) -> list[Section]:
    """Reductions by level (operands first); those of one level over the same axes share a loop."""
    ids = {id(r): r for r in reduces}
    level: dict[int, int] = {}
    for r in reduces:  # operands come first in the list
        below = [level[id(n)] for n in walk(r.value) if id(n) in ids]
        level[id(r)] = 1 + max(below, default=-1)
    sections: list[Section] = []
    for depth in range(1 + max(level.values(), default=-1)):
        by_axes: dict[tuple[Axis, ...], list[Reduce]] = {}
        for r in reduces:
            if level[id(r)] == depth:
                by_axes.setdefault(r.axes, []).append(r)
        sections += [Section(axes, reduces=tuple(members)) for axes, members in by_axes.items()]
    return sections


def _lane_axis(outer: tuple[Axis, ...], reduces: Sequence[Reduce], stores: Sequence[Store], facts: Facts) -> Axis | None:
    """The outer axis along which memory runs, where that beats the reductions' own axes."""
    indices = [load.index for load in loads_in([r.value for r in reduces])]
    bound = {a for r in reduces for a in r.axes}
    best_inner = max((score(a, indices) for a in bound), default=0.0)
    best = max(outer, key=lambda a: score(a, indices), default=None)
    if best is None or score(best, indices) <= best_inner:
        return None
    return best


def _pointwise(axes: tuple[Axis, ...], stores: list[Store], facts: Facts) -> Phase:
    scanned = [n.axis for n in walk(*(v for s in stores for v in store_roots(s))) if isinstance(n, Scan)]
    if scanned:
        return scan_phase(axes, scanned[0], stores, facts)
    section = Section(axes, stores=tuple(stores))
    ordered = vector_last(axes, section)
    woven = interleaved(ordered, stores, facts)
    rows = short_rows(axes, stores, facts) if _crossing(ordered, stores) is None and not _in_pairs(woven[1], stores) else None
    if rows is not None:
        one_range = (rows.head, *rows.inner)
        return Phase(tuple(a for a in axes if a not in one_range), (Section(one_range, stores=tuple(stores)),), rows=rows)
    ordered, stores = woven
    across = _crossing(ordered, stores)
    if across is not None:
        tile = (across, ordered[-1])
        outer = tuple(a for a in ordered if a not in tile)
        return Phase(outer, (Section(tile, stores=tuple(stores)),), tile=tile)
    return (in_columns(ordered, stores, facts) if ordered else None) or Phase(ordered[:-1], (Section(ordered[-1:], stores=tuple(stores)),))


def _in_pairs(woven: Sequence[Store], stores: Sequence[Store]) -> bool:
    """Whether stores interleave by a power of two, as vector instructions do: of three, say, single elements would be written."""
    ways = len(woven) // len(stores)
    return ways > 1 and ways & (ways - 1) == 0


def _crossing(ordered: tuple[Axis, ...], stores: Sequence[Store]) -> Axis | None:
    """The axis along which some access runs while others run along the vector axis: a transposition, when both are long."""
    if len(ordered) < 2 or any(s.mode != "set" for s in stores):
        return None
    indices = [load.index for load in loads_in([v for s in stores for v in store_roots(s)])] + [s.index for s in stores]
    last = ordered[-1]
    for axis in ordered[:-1]:
        across = [i for i in indices if stride_along(i, axis.symbol) == 1 and stride_along(i, last.symbol) not in (0, 1)]
        if across and _long(axis) and _long(last):
            return axis
    return None


def _long(axis: Axis) -> bool:
    return not isinstance(axis.extent, int | sympy.Integer) or int(axis.extent) >= 16


def unrolled(value: Value) -> bool:
    """Whether an inline reduction is written out point by point."""
    if not isinstance(value, Reduce):
        return False
    points = static_product(a.extent for a in value.axes)
    return points is not None and points <= UNROLL_LIMIT


def has_loop(roots: Sequence[Value], made: set[int]) -> bool:
    """Whether evaluating `roots` (with reductions in `made` at hand) needs a loop or carries state, which forbids `omp simd`."""
    stack, seen = list(roots), set()
    while stack:
        node = stack.pop()
        if id(node) in seen or id(node) in made:
            continue
        seen.add(id(node))
        if isinstance(node, Scan) or (isinstance(node, Reduce) and not unrolled(node)):
            return True
        stack.extend(operands(node))
    return False
