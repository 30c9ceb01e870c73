"""Fusion groups: kernels that become one, the group's axes, each member's place in the loop nest, and how two groups merge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy

from precast.lowering.analysis.kernel_facts import KernelFacts, cost_of, gathers_along, points, reduction_levels
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Index, Kernel, Load, Scan, Size, Store, Value, axis_symbol, walk
from precast.lowering.ir.substitution import Mapping_, coordinates, shared_axis, strides_of
from precast.lowering.ir.sympy_calls import renamed, same, symbols_of

MIN_ROWS = 8
"""Independent rows that must remain, for threads to share, when a reduction is computed inside a larger loop."""
SMALL = 1 << 14
"""Points below which lost parallelism costs nothing: such a loop takes a few microseconds."""

Symbols = frozenset[sympy.Symbol]


@dataclass(frozen=True)
class Placed:
    """A member's axes as expressions over the group's axes and `binders` (axes of reductions that it is evaluated in)."""

    mapping: Mapping_
    binders: tuple[Axis, ...] = ()


@dataclass(frozen=True)
class Group:
    name: str
    members: frozenset[int]
    axes: tuple[Axis, ...]
    places: dict[int, Placed]
    loads: frozenset[str]
    stores: frozenset[str]
    overwrites: frozenset[str]
    levels: frozenset[Symbols]  # sets of axes at which reductions are computed or shorter stores made: nested, outermost first
    costs: dict[str, int]
    reducing: bool
    scanned: Symbols  # axes along which a scan runs: such a group is never merged sideways, and as a producer see `scan_carries_over`

    @property
    def points(self) -> int:
        return points(self.axes)

    @property
    def space(self) -> tuple[object, ...]:
        return tuple(a.extent for a in self.axes)

    @property
    def symbols(self) -> Symbols:
        return frozenset(a.symbol for a in self.axes)

    def beside(self, other: Group) -> Group:
        """This group with the members of `other`, which has the same axes in the same order, running at the same points."""
        names = {a.symbol: b.symbol for a, b in zip(other.axes, self.axes, strict=True)}
        places = dict(self.places)
        for member, placed in other.places.items():
            places[member] = Placed(tuple((s, renamed(e, names)) for s, e in placed.mapping), placed.binders)
        levels = self.levels | {frozenset(names.get(s, s) for s in level) for level in other.levels}
        return _union_of(other, self, self.axes, places, levels)


def single(position: int, kernel: Kernel, facts: KernelFacts) -> Group:
    """The group of one kernel."""
    axes = tuple(shared_axis(a.symbol, a.extent) for a in kernel.axes if a.extent != 1)
    mapping = tuple((a.symbol, a.symbol if a.extent != 1 else sympy.S.Zero) for a in kernel.axes)
    stores = frozenset(s.buffer for s in kernel.stores)
    kept = {a.symbol for a in axes}
    levels = {level & kept for level in reduction_levels(kernel)}
    levels |= {frozenset(a.symbol for a in s.axes) & kept for s in kernel.stores if s.axes is not None}
    values = list(walk(*(s.value for s in kernel.stores)))
    return Group(
        kernel.name,
        frozenset({position}),
        axes,
        {position: Placed(mapping)},
        frozenset(load.buffer for load, _ in facts.places[position]),
        stores,
        frozenset(s for s in stores if s not in facts.defined),
        frozenset(levels),
        {s.buffer: cost_of(s.value) + _gathering(facts, kernel, s) for s in kernel.stores},
        bool(levels),
        frozenset(v.axis.symbol for v in values if isinstance(v, Scan)),
    )


def _gathering(facts: KernelFacts, kernel: Kernel, store: Store) -> int:
    axes = kernel.axes if store.axes is None else store.axes
    return facts.gather_cost * gathers_along(store, axes) if facts.gather_cost else 0


@dataclass(frozen=True)
class Site:
    """One load, in the consumer, of a buffer that the producer stores."""

    load: Load
    at: sympy.Expr
    coordinates: Mapping_
    binders: tuple[Axis, ...]  # bound axes that the coordinates use
    axes: tuple[Axis, ...]  # group axes that the coordinates use
    elements: int
    evaluations: int
    reducing: bool


def sites_between(facts: KernelFacts, a: Group, b: Group) -> list[Site] | str:
    """Every load in `b` of what `a` stores, or why one of them cannot be replaced."""
    found: list[Site] = []
    for member in sorted(b.members):
        placed = b.places[member]
        for load, own in facts.places[member]:
            if load.buffer not in a.stores:
                continue
            if load.buffer not in facts.defined:
                return f"{load.buffer} is not stored once per element, so its loads must come from memory"
            site = _site(facts, b, placed, load, own)
            if isinstance(site, str):
                return site
            found.append(site)
    found.sort(key=lambda s: (len(s.binders), -len(s.axes)))
    return found


def _is_read_along(value: Value, axes: set[sympy.Symbol]) -> bool:
    """Whether some load that the value is made of runs along one of the axes."""
    return any(isinstance(v, Load) and not axes.isdisjoint(symbols_of(v.index)) for v in walk(value))


def _site(facts: KernelFacts, b: Group, placed: Placed, load: Load, own: tuple[Axis, ...]) -> Site | str:
    taken = {a.symbol for a in placed.binders}
    names: dict[sympy.Symbol, sympy.Symbol] = {}
    inner: list[Axis] = list(placed.binders)
    for axis in own:
        name = axis.symbol
        while name in taken:
            name = axis_symbol(f"{name}_")
        taken.add(name)
        if name is not axis.symbol:
            names[axis.symbol] = name
        inner.append(shared_axis(name, axis.extent))
    if load.gathers:
        if any(g.symbol in taken for g in load.gathers):
            return "two gathers use one name"
    extents = tuple((x.symbol, x.extent) for x in (*b.axes, *inner)) + tuple((g.symbol, g.size) for g in load.gathers)
    items = tuple((s, e) for s, e in placed.mapping if s is not e) + tuple(names.items())
    at = ix.substitute(load.index, items, extents) if items else load.index
    definition = facts.defined[load.buffer]
    where = coordinates(definition.index, definition.axes, at, extents)
    if where is None:
        return f"the elements that it reads of {load.buffer} cannot be traced to the points that store them"
    if load.mask is not None and not ix.has_division(at) and any(ix.has_division(e) for _, e in where):
        return f"its masked reads of {load.buffer} cannot be traced to the points that store them"
    gathered = {g.symbol for g in load.gathers}
    if gathered and _has_positions(facts, load.buffer, frozenset(s for s, e in where if gathered & symbols_of(e))):
        return "it computes positions, which cannot depend on gathered data"
    if not all(_is_read_along(definition.value, {s for s, e in where if g.symbol in symbols_of(e)}) for g in load.gathers if g.checked):
        return "nothing that it reads would show that a position is out of bounds"
    used = _symbols_in(e for _, e in where)
    binders = tuple(x for x in inner if x.symbol in used)
    axes = tuple(x for x in b.axes if x.symbol in used)
    reducing = load.buffer in facts.reducing
    # the axes of a reduction are moved outwards, see `ordered`; other values are computed where the loop nest has them
    evaluations = points((*axes, *binders)) if reducing else _evaluations(b, inner, used)
    return Site(load, at, where, binders, axes, facts.elements[load.buffer], evaluations, reducing)


def _has_positions(facts: KernelFacts, buffer: str, along: Symbols) -> bool:
    """Whether the buffer's values are computed from the position along one of these axes."""
    return any(isinstance(v, Index) and symbols_of(v.expr) & along for v in walk(facts.defined[buffer].value))


def scan_carries_over(facts: KernelFacts, a: Group, b: Group, sites: Sequence[Site]) -> bool:
    """Whether a scan of `a` may run in the loops of `b`: each point of these reads the element of one point of the scan's, in its order."""
    if b.reducing or b.scanned:
        return False
    extents: dict[sympy.Expr, Size] = {x.symbol: x.extent for x in b.axes}
    seen: list[object] = []
    for site in sites:
        own = [x for x in facts.defined[site.load.buffer].axes if x.extent != 1]
        where = dict(site.coordinates)
        found = [where[x.symbol] for x in own]
        alike = all(extents.get(e) == x.extent for e, x in zip(found, own, strict=True))
        if site.binders or site.load.mask is not None or site.load.gathers or not alike or len(set(found)) != len(b.axes):
            return False
        seen.append(axes_of_producer(facts, a, site))
    return all(points == seen[0] for points in seen)


def _evaluations(b: Group, inner: list[Axis], used: Symbols) -> int:
    """How often a value that depends on `used` is computed: once per point of the shortest prefix of the loop nest that has all of them."""
    bound = [x for x in inner if x.symbol in used]
    rows = used & b.symbols
    if bound:
        # a reduction runs once per point of the axes that it depends on, whatever loops come inside those
        levels = sorted((level for level in b.levels if rows <= level), key=len)
        outer = [x for x in b.axes if x.symbol in (levels[0] if levels else b.symbols)]
    else:
        last = max((i for i, x in enumerate(b.axes) if x.symbol in rows), default=-1)
        outer = list(b.axes[: last + 1])
    return points((*outer, *bound))


def merge_places(
    facts: KernelFacts, a: Group, b: Group, sites: list[Site], survivors: list[str], rows_in_points: bool = False
) -> Group | str:
    """`b` with `a` computed inside it, or why the two do not share a loop nest. `rows_in_points`: see `fuse`."""
    site = sites[0]
    found = axes_of_producer(facts, a, site)
    if isinstance(found, str):
        return found
    mapping, missing = found
    axes = b.axes
    if survivors:
        aligned = _align(a, b, site, mapping, missing, rows_in_points)
        if isinstance(aligned, str):
            return aligned
        axes, mapping = aligned
        missing = ()
    binders = () if survivors else (*site.binders, *missing)
    places = dict(b.places)
    extents = tuple((x.symbol, x.extent) for x in (*axes, *binders))
    for member, placed in a.places.items():
        own = {x.symbol for x in placed.binders}
        if own & {x.symbol for x in binders}:
            placed = _freshen(placed, {x.symbol for x in binders})
        items = tuple((s, e) for s, e in mapping.items() if s is not e)
        moved = tuple((s, ix.substitute(e, items, extents) if items and isinstance(e, sympy.Basic) else e) for s, e in placed.mapping)
        places[member] = Placed(moved, (*placed.binders, *binders))
    again = _made_again(facts, a, places, axes, survivors)
    if again is not None:
        return f"{again} would be stored once for each point of a loop that it does not depend on"
    levels = set(b.levels)
    if axes is not b.axes and b.axes != axes:
        levels.add(b.symbols)
    bound = {x.symbol for x in binders}
    for level in a.levels:
        symbols = _symbols_in(mapping[s] for s in level)
        if not symbols & bound:
            levels.add(symbols & {x.symbol for x in axes})
    for member in a.members:
        if facts.stored.get(member, frozenset()) & set(survivors):
            levels.add(_symbols_in(e for _, e in places[member].mapping) & {x.symbol for x in axes})
    merged = _union_of(a, b, axes, places, levels)
    merged = replace(merged, scanned=b.scanned | _symbols_in(mapping[s] for s in a.scanned))
    return ordered(facts, merged)


def _made_again(
    facts: KernelFacts, group: Group, places: Mapping[int, Placed], axes: tuple[Axis, ...], survivors: Sequence[str]
) -> str | None:
    """A buffer of the group whose stores several points of the axes would make: `x % 16` of an axis of 32 reaches each row twice. What such
    a store adds to memory, or reads from where it writes, would be wrong the second time.
    """
    for member in sorted(group.members):
        kernel, where = facts.program.steps[member], dict(places[member].mapping)
        assert isinstance(kernel, Kernel)
        for store in kernel.stores:
            if store.buffer in facts.defined and store.buffer not in survivors:
                continue
            own = kernel.axes if store.axes is None else store.axes
            used = _symbols_in(where[x.symbol] for x in own)
            if not same(ix.numel(x.extent for x in axes if x.symbol in used), ix.numel(x.extent for x in own)):
                return store.buffer
    return None


def _symbols_in(exprs: Iterable[sympy.Expr]) -> Symbols:
    return frozenset(s for e in exprs for s in symbols_of(e))


def _freshen(placed: Placed, taken: set[sympy.Symbol]) -> Placed:
    names: dict[sympy.Symbol, sympy.Symbol] = {}
    for axis in placed.binders:
        name = axis.symbol
        while name in taken or name in names.values():
            name = axis_symbol(f"{name}_")
        names[axis.symbol] = name
    binders = tuple(shared_axis(names[x.symbol], x.extent) for x in placed.binders)
    return Placed(tuple((s, renamed(e, names)) for s, e in placed.mapping), binders)


def axes_of_producer(facts: KernelFacts, a: Group, site: Site) -> tuple[dict[sympy.Symbol, sympy.Expr], tuple[Axis, ...]] | str:
    """The producer's axes as the consumer sees them at this load, and those that the loaded buffer does not determine."""
    placed = a.places[facts.writer[site.load.buffer]]
    where = dict(site.coordinates)
    mapping: dict[sympy.Symbol, sympy.Expr] = {}
    composite: list[sympy.Symbol] = []
    for symbol, expr in placed.mapping:
        if isinstance(expr, sympy.Symbol) and symbol in where:
            mapping[expr] = where[symbol]
        elif symbol in where and expr is not sympy.S.Zero:
            composite.append(symbol)
    missing = tuple(x for x in a.axes if x.symbol not in mapping)
    if missing and composite:
        return "they number the same elements differently"
    for axis in missing:
        mapping[axis.symbol] = axis.symbol
    return mapping, missing


def _align(
    a: Group, b: Group, site: Site, mapping: dict[sympy.Symbol, sympy.Expr], missing: tuple[Axis, ...], rows_in_points: bool
) -> tuple[tuple[Axis, ...], dict[sympy.Symbol, sympy.Expr]] | str:
    """Gives each point of the producer one point of the fused loop nest, adding inner axes to the consumer where it has none left."""
    used_axes = (*site.axes, *site.binders)
    if strides_of(site.at, used_axes) is None or not _same_count(used_axes, site.elements, a, missing):
        return "its buffer is needed elsewhere too, and the two do not visit each element once in the same loops"
    free = [x for x in b.axes if x not in site.axes]
    rename: dict[sympy.Symbol, sympy.Symbol] = {}
    extra: list[Axis] = []
    for axis in (*site.binders, *missing):
        match = next((x for x in free if x.extent == axis.extent), None)
        if match is not None:
            free.remove(match)
            rename[axis.symbol] = match.symbol
        else:
            name = axis_symbol(f"x{len(b.axes) + len(extra)}")
            while name in b.symbols:
                name = axis_symbol(f"{name}_")
            extra.append(shared_axis(name, axis.extent))
            rename[axis.symbol] = name
    if free and extra:
        return "its buffer is needed elsewhere too, and the two run over different axes"
    if free and not (rows_in_points and site.reducing):
        return "its buffer is needed elsewhere too, and the consumer would store it several times"
    return (*b.axes, *extra), {s: renamed(e, rename) for s, e in mapping.items()}


def _same_count(axes: tuple[Axis, ...], elements: int, a: Group, missing: tuple[Axis, ...]) -> bool:
    return points(axes) == elements and points(axes) * points(missing) == a.points


def _union_of(a: Group, b: Group, axes: tuple[Axis, ...], places: dict[int, Placed], levels: set[Symbols] | frozenset[Symbols]) -> Group:
    costs = {name: cost + sum(a.costs[n] for n in b.loads & a.stores) for name, cost in b.costs.items()}
    return Group(
        b.name,
        a.members | b.members,
        axes,
        places,
        a.loads | b.loads,
        a.stores | b.stores,
        a.overwrites | b.overwrites,
        frozenset(levels),
        {**a.costs, **costs},
        a.reducing or b.reducing,
        b.scanned,
    )


def ordered(facts: KernelFacts, group: Group) -> Group | str:
    """The group with its axes ordered so that each level is a prefix, or why that is not wanted."""
    everything = group.symbols
    if group.reducing and any(level & group.scanned and level != everything for level in group.levels):
        return "its reductions would have to be computed again at each step of a scan"
    levels = sorted({level for level in group.levels if level != everything}, key=len)
    for outer, inner in zip(levels, levels[1:], strict=False):
        if not outer <= inner:
            return "its reductions run along different axes"
    rank = {s: i for i, level in reversed(list(enumerate(levels))) for s in level}
    axes = tuple(sorted(group.axes, key=lambda x: rank.get(x.symbol, len(levels))))
    for level in levels:
        rows = points(tuple(x for x in axes if x.symbol in level))
        if rows < MIN_ROWS and group.points > SMALL:
            return f"only {rows} independent rows would be left to share among threads"
    if levels and group.points > SMALL // 4 and _vector_axis(facts, group) in levels[-1]:
        return "the inner loop would not run along consecutive memory"
    return replace(group, axes=axes)


def _vector_axis(facts: KernelFacts, group: Group) -> sympy.Symbol | None:
    """The axis along which the largest store (of equal ones the last) is consecutive."""
    best: tuple[int, sympy.Symbol | None] = (0, None)
    for name in sorted(group.stores & facts.defined.keys(), key=lambda name: (facts.writer[name], name), reverse=True):
        definition = facts.defined[name]
        placed = dict(group.places[facts.writer[name]].mapping)
        size = facts.elements[name]
        pairs = strides_of(definition.index, definition.axes)
        if size > best[0] and pairs and pairs[-1][1] == 1:
            inner = placed.get(pairs[-1][0].symbol)
            best = (size, inner if isinstance(inner, sympy.Symbol) else None)
    return best[1]
