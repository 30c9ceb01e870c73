"""One `Kernel` as one C++ function over raw pointers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import free_symbols, subexpressions
from precast.codegen.common.value_facts import Facts
from precast.codegen.cpp import online
from precast.codegen.cpp.body import Body, Level
from precast.codegen.cpp.column_sums import write_columns
from precast.codegen.cpp.costs import PARALLEL_NS, Costs
from precast.codegen.cpp.loops import Loops
from precast.codegen.cpp.planning.column_sums import what_must_hold
from precast.codegen.cpp.planning.loop_plan import plan, rows_that_may_not_fit, without_rows
from precast.codegen.cpp.planning.scan_loops import FEW_ROWS, TILE, row_by_row
from precast.codegen.cpp.planning.sections import ROW_LIMIT, Columns, Phase, Section
from precast.codegen.cpp.planning.shared_updates import loops_apart, owners, owning_gather
from precast.codegen.cpp.row_blocks import RowBlocks
from precast.codegen.cpp.sharing import Loop, in_order, in_pieces
from precast.codegen.cpp.split import Split
from precast.codegen.cpp.transposes import LINE, Tiles, widths
from precast.codegen.cpp.types import storage
from precast.lowering.analysis.effects import store_roots
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Axis, Buffer, Gather, Index, Kernel, Load, Reduce, Store, walk
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.sizes import known


@dataclass(frozen=True)
class RenderedKernel:
    """`source` defines `static void name(pointers…, sizes…, int threads, Error*)`: buffers `arguments`, sizes `symbols`, in order."""

    name: str
    source: str
    arguments: tuple[str, ...]
    symbols: tuple[sympy.Symbol, ...]
    checks: bool
    serial_ns: float
    body: str
    """`source` without the kernel's own name and origins: equal bodies are one function."""


def render_kernel(kernel: Kernel, buffers: dict[str, Buffer]) -> RenderedKernel:
    """Writes `kernel` as C++; `TypeError` names what has no form."""
    return _Renderer(kernel, buffers).run()


class _Renderer:
    def __init__(self, kernel: Kernel, buffers: dict[str, Buffer]) -> None:
        self.kernel = kernel
        self.buffers = dict(buffers)  # and those of rows
        self.facts = Facts()
        roots = tuple(v for s in kernel.stores for v in store_roots(s))
        self.nodes = list(walk(*roots))
        self.written = list(dict.fromkeys(s.buffer for s in kernel.stores))
        read = dict.fromkeys(n.buffer for n in self.nodes if isinstance(n, Load))
        self.read = frozenset(read)
        self.arguments = (*self.written, *(b for b in read if b not in self.written))
        self.ranges = self._ranges()
        self.symbols = self._size_symbols()
        pointers = {name: f"p{number}" for number, name in enumerate(self.arguments)}
        variables = {s: f"s{number}" for number, s in enumerate(self.symbols)}
        self.body = Body(self.facts, self.buffers, pointers, variables, self.ranges, self._index_type())
        self.costs = Costs(self.body)
        self.loops = Loops(self.body)
        self.split = Split(self.loops, self.costs)

    def _axes(self) -> list[Axis]:
        found = dict.fromkeys(self.kernel.axes)
        for node in self.nodes:
            if isinstance(node, Reduce):
                found.update(dict.fromkeys(node.axes))
        return list(found)

    def _gathers(self) -> list[Gather]:
        found = [g for n in self.nodes if isinstance(n, Load) for g in n.gathers]
        return found + [g for s in self.kernel.stores for g in s.gathers]

    def _ranges(self) -> dict[sympy.Symbol, Interval | None]:
        ranges: dict[sympy.Symbol, Interval | None] = {}
        for axis in self._axes():
            ranges[axis.symbol] = (0, max(int(axis.extent) - 1, 0)) if known(axis.extent) else None
        for gather in self._gathers():
            ranges[gather.symbol] = (0, max(int(gather.size) - 1, 0)) if known(gather.size) else None
        return ranges

    def _expressions(self) -> list[sympy.Expr]:
        found = [n.index for n in self.nodes if isinstance(n, Load)] + [n.expr for n in self.nodes if isinstance(n, Index)]
        return [sympy.sympify(e) for e in found + [s.index for s in self.kernel.stores]]

    def _widen_ranges(self, phases: Sequence[Phase]) -> None:
        """Takes in the axes that the plan made longer."""
        every = [*phases, *(p.columns.whole for p in phases if p.columns is not None)]
        for axis in (a for phase in every for section in phase.sections for a in section.axes):
            old = self.ranges.get(axis.symbol)
            self.ranges[axis.symbol] = (0, max(old[1], int(axis.extent) - 1)) if old is not None and known(axis.extent) else None

    def _size_symbols(self) -> tuple[sympy.Symbol, ...]:
        sizes = [a.extent for a in self._axes()] + [g.size for g in self._gathers()]
        free = frozenset[sympy.Symbol]().union(*(free_symbols(sympy.sympify(e)) for e in [*self._expressions(), *sizes]))
        return tuple(sorted(free - set(self.ranges), key=lambda s: s.name))

    def _index_type(self) -> str:
        """32-bit loop variables where every part of every index expression is proven to fit (dense lanes for f32 data)."""
        for expr in self._expressions():
            for part in subexpressions(expr):
                bounds = interval(part, self.ranges)
                if bounds is None or bounds[0] < -(2**31) or bounds[1] >= 2**31:
                    return "int64_t"
        return "int32_t" if all(known(a.extent) for a in self._axes()) else "int64_t"

    def run(self) -> RenderedKernel:
        top = Level(frozenset(), 1)
        self.body.path = [top]
        total = 0.0
        made: dict[int, str] = {}
        names = dict(top.names)
        phases = plan(self.kernel, self.facts)
        self._widen_ranges(phases)
        for phase in phases:
            total += self._phase(phase, top)
            if phase.outer or any(s.stores for s in phase.sections):  # what a phase of reductions alone made is in scope to the end
                self.body.made, self.body.positions = dict(made), {}
                top.names = dict(names)
            else:
                made, names = dict(self.body.made), dict(top.names)
        params = [
            f"{'' if b in self.written else 'const '}{storage(self.buffers[b].dtype)}* {self.body.pointers[b]}" for b in self.arguments
        ]
        params += [f"const {'double' if is_real(s) else 'int64_t'} {self.body.variables[s]}" for s in self.symbols]
        head = f"// {' '.join(self.kernel.origins)}\n" if self.kernel.origins else ""
        if self.body.truncates:
            top.lines[:0] = ['  int32_t zero = 0; __asm__("" : "+r"(zero));', "  const int32_t nothing = zero;"]
        rest = f"({', '.join([*params, 'const int threads', 'Error* error'])}) {{\n" + "\n".join(top.lines) + "\n}\n"
        source = f"{head}static void {self.kernel.name}{rest}"
        return RenderedKernel(self.kernel.name, source, self.arguments, self.symbols, self.body.checks, total, rest)

    # one phase: outer loops, then its sections

    def _phase(self, phase: Phase, top: Level) -> float:
        """The phase, beside another form of it for sizes that show at run time only."""
        if phase.columns is not None and (held := what_must_hold(phase.columns)):
            conditions = [f"{self.body.extent(a)} {limit}" for a, limit in held]
            return self._either(conditions, top, lambda: self._rows(phase, top), *map(self._written(top), phase.columns.apart))
        if phase.turned and phase.lane is not None and not known(phase.lane.extent):
            conditions = [f"{self.body.extent(phase.lane)} >= {FEW_ROWS}"]
            return self._either(conditions, top, lambda: self._one_phase(phase, top), lambda: self._one_phase(row_by_row(phase), top))
        return self._rows(phase, top)

    def _written(self, top: Level) -> Callable[[Phase], Callable[[], float]]:
        return lambda phase: lambda: self._phase(phase, top)

    def _rows(self, phase: Phase, top: Level) -> float:
        """The phase with what it keeps of rows, where those fit."""
        conditions = [f"{self.body.extent(a)} <= {ROW_LIMIT}" for a in rows_that_may_not_fit(phase)]
        if not conditions:
            return self._one_phase(phase, top)
        return self._either(conditions, top, lambda: self._one_phase(phase, top), lambda: self._one_phase(without_rows(phase), top))

    def _either(self, conditions: Sequence[str], top: Level, first: Callable[[], float], *others: Callable[[], float]) -> float:
        top.add(f"if ({' && '.join(conditions)}) {{")
        made, names = dict(self.body.made), dict(top.names)
        estimate = first()
        top.add("} else {")
        for other in others:
            self.body.made, top.names = dict(made), dict(names)
            other()
        top.add("}")
        self.body.made, top.names = made, names
        return estimate

    def _one_phase(self, phase: Phase, top: Level) -> float:
        body, self.loops.width = self.body, phase.lanes
        estimate = self.costs.serial_ns(phase)
        if phase.columns is not None:
            self._columns(phase, phase.columns, estimate, top)
            return estimate
        chunk = self.costs.chunk(phase, estimate)
        in_blocks = (phase.lane, phase.across)
        loops = [Loop(body.variable(a.symbol), body.extent(a)) for a in phase.outer if a not in in_blocks]
        rows = None if phase.rows is None else RowBlocks(body, phase.rows)
        blocked = self._blocks(phase, chunk) if rows is None else [(rows.axis, rows.rows.width)]
        lanes = TILE if phase.turned else self.loops.lanes(phase.lane) if phase.lane is not None else 0
        for axis, width in [*([(phase.lane, lanes)] if phase.lane is not None else []), *blocked, *self._across(phase)]:
            loops.append(Loop(body.variable(axis.symbol) + "_0", body.extent(axis), width))
        if phase.across is not None and len(loops) > 1:  # along a plane's rows rather than from plane to plane
            loops[-2:] = loops[:-3:-1]
        if not loops:
            for section in phase.sections:
                alone = Phase((), (section,))
                chunks = self.split.most(alone, estimate) if self.split.splits(section) else 0
                if chunks:
                    self.split.write(alone, chunks, top)
                else:
                    self.loops.section(section, top)
            return estimate
        if chunks := self.split.chunks(phase, estimate):
            self._split_phase(phase, chunks, top)
            return estimate
        level = Level(frozenset(a.symbol for a in phase.outer if a not in in_blocks), len(loops) + 1)
        body.path.append(level)
        if phase.lane is not None:
            self.loops.lane_bounds(phase.lane, lanes, level)
        for axis, width in blocked:
            self.loops.lane_bounds(axis, width, level)
        shared = self._shared_updates(phase, estimate)
        if isinstance(shared, Gather):
            self._skip_others(phase.sections[0].stores[0], shared, level)
        if phase.tile:
            self._tile_section(phase.sections[0], phase.tile, level)
        elif phase.across is not None:
            self._turned_rows(phase, phase.across, level)
        elif rows is not None:
            rows.once(top, phase.outer)
            rows.write(level, phase.sections[0].stores, self.loops.store)
        else:
            self._sections(phase, level, tuple(a for a, _ in blocked))
        body.path.pop()
        pragma = self._pragma(phase, estimate)
        work = self.costs.work(phase, estimate)
        if isinstance(shared, Gather):
            self._share_out(phase, shared, loops, level, top)
        elif shared is not None:
            in_order(loops, level.lines, body.index_type, pragma if shared else None, top, shared)
        elif pragma is not None and work is not None:
            in_pieces(loops, level.lines, body.index_type, pragma, work, top)
        else:
            in_order(loops, level.lines, body.index_type, pragma, top)
        return estimate

    def _split_phase(self, phase: Phase, chunks: int, top: Level) -> None:
        """A phase whose reductions threads share in chunks; the rest is little."""
        level = self.split.write(phase, chunks, top)
        self.body.path.append(level)
        for section in phase.sections[1:]:
            if phase.lane is not None:
                self.loops.lane_section(section, phase.lane, level)
            else:
                self.loops.section(section, level)
        self.body.path.pop()
        self.split.finish(phase, level, top)

    def _columns(self, phase: Phase, columns: Columns, estimate: float, top: Level) -> None:
        write_columns(
            columns,
            self.body,
            top,
            lambda level: self._sections(phase, level, ()),
            lambda: self._one_phase(columns.whole, top),
            self._pragma(phase, estimate),
            self.costs.work(phase, estimate),
        )

    def _sections(self, phase: Phase, level: Level, blocked: tuple[Axis, ...]) -> None:
        """Sections in order; a maximum and the sum of exponentials that needs it are one pass."""
        taken = 0
        for number, section in enumerate(phase.sections):
            if number < taken:
                continue
            if phase.lane is not None:
                (self._turned_section if phase.turned else self.loops.lane_section)(section, phase.lane, level)
                continue
            follower = phase.sections[number + 1] if number + 1 < len(phase.sections) else None
            pair = online.pair_of(section, follower, self.facts, set(self.body.made)) if follower is not None else None
            if section.case is not None:
                self._case(section, section.case, level, blocked)
                continue
            if pair is None:
                self.loops.section(section, level, blocked)
                continue
            taken = number + 2
            user = phase.sections[taken] if taken < len(phase.sections) else None
            kept = online.kept_for(pair, user, self.buffers, self.read)
            names = online.write(pair, self.body, level, kept)
            if kept is not None:
                online.write_user(pair, kept, names, self.loops, level)
                taken += 1

    def _case(self, section: Section, case: tuple[Axis, int, int], level: Level, blocked: tuple[Axis, ...]) -> None:
        """A section that runs in a piece of an outer axis; what it names is known in that case only."""
        axis, low, high = case
        inner = Level(level.axes, level.indent + 1)
        self.body.path.append(inner)
        self.loops.section(section, inner, blocked)
        self.body.path.pop()
        name = self.body.variable(axis.symbol)
        tests = ([f"{name} >= {low}"] if low else []) + ([f"{name} < {high}"] if high < int(axis.extent) else [])
        level.add(f"if ({' && '.join(tests)}) {{")
        level.lines += inner.lines
        level.add("}")

    def _tile_section(self, section: Section, tile: tuple[Axis, Axis], level: Level) -> None:
        """Where not all blocks are whole, loops of whole ones stand apart."""
        tiles = Tiles(self.body, tile, section, widths(section, tile, self.body))
        tiles.fill(level)
        start = len(level.lines)
        self.loops.section(section, level, tile)
        level.lines[start:] = tiles.apart(level.lines[start:], level)
        tiles.empty(level)

    def _across(self, phase: Phase) -> list[tuple[Axis, int]]:
        """The outer axis whose blocks are turned, with their width: a cache line of results."""
        if phase.across is None:
            return []
        smallest = min(self.buffers[s.buffer].dtype.itemsize for s in phase.sections[-1].stores)
        return [(phase.across, LINE // smallest)]

    def _turned_rows(self, phase: Phase, across: Axis, level: Level) -> None:
        """All sections for each row of a block; the results of the last one are turned when the block has all of them."""
        body, last = self.body, phase.sections[-1]
        (along,), ((_, width),) = last.axes, self._across(phase)
        name, row = body.variable(across.symbol), body.variable(along.symbol)
        self.loops.lane_bounds(across, width, level)
        level.add(f"const {body.index_type} {row}_0 = 0, {row}_1 = {body.extent(along)};")
        tiles = Tiles(body, (across, along), last, (width, int(along.extent)))
        tiles.fill(level)
        inner = Level(frozenset({across.symbol}), level.indent + 1)
        body.path.append(inner)
        for rows in [a for a in phase.outer if a is not across][-1:]:
            self.loops.ask_for_next(phase.sections[:-1], rows, inner)
        self._sections(phase, inner, ())
        body.path.pop()
        level.add(f"for ({body.index_type} {name} = {name}_0; {name} < {name}_1; ++{name}) {{")
        level.lines += inner.lines
        level.add("}")
        tiles.empty(level)

    def _turned_section(self, section: Section, lane: Axis, level: Level) -> None:
        """Running reductions of up to `TILE` rows, whose loop has the lanes' bounds: blocks are turned, and a vector holds one column's
        elements of all rows.
        """
        body, (axis,) = self.body, section.axes
        name, kind = body.variable(axis.symbol), body.index_type
        self.loops.declare_scans(section, level, f"{body.variable(lane.symbol)} - {body.variable(lane.symbol)}_0")
        block = Level(frozenset(), level.indent + 1)
        body.path.append(block)
        self.loops.lane_bounds(axis, TILE, block)
        tiles = Tiles(body, (axis, lane), section, (TILE, TILE))
        tiles.fill(block)
        start = len(block.lines)
        self.loops.lane_stores(section, lane, block, (axis, lane))
        block.lines[start:] = tiles.apart(block.lines[start:], block)
        tiles.empty(block)
        body.path.pop()
        level.add(f"for ({kind} {name}_0 = 0; {name}_0 < {body.extent(axis)}; {name}_0 += {TILE}) {{")
        level.lines += block.lines
        level.add("}")

    def _blocks(self, phase: Phase, chunk: int) -> list[tuple[Axis, int]]:
        """Section axes that run in blocks, with the block's width."""
        if phase.tile:
            return list(zip(phase.tile, widths(phase.sections[0], phase.tile, self.body), strict=True))
        if phase.blocks:
            return list(phase.blocks)
        return [(phase.sections[0].axes[-1], chunk)] if chunk else []

    def _pragma(self, phase: Phase, estimate: float) -> str | None:
        """The clauses of a phase that threads share."""
        symbolic = not all(known(a.extent) for section in phase.sections for a in (*phase.outer, *section.axes))
        if estimate < PARALLEL_NS and not symbolic:
            return None
        return f"num_threads(threads) if({self.costs.worth_threads(phase)})"

    # updates at run-time indices, which threads share (shared_updates.py)

    def _shared_updates(self, phase: Phase, estimate: float) -> int | Gather | None:
        """How many outer loops threads may share, or the position that tells whose an update is; None where nothing is updated."""
        stores = [s for section in phase.sections for s in section.stores]
        if all(s.mode == "set" for s in stores):
            return None
        (store, *others), (section, *more) = stores, phase.sections
        if others or more or section.reduces or any(isinstance(n, Load) and n.buffer == store.buffer for n in self.nodes):
            return 0
        outer = [a for a in phase.outer if a is not phase.lane]
        count = loops_apart(store, outer, self.ranges)
        if count or phase.lane is not None or estimate < PARALLEL_NS:
            return count
        return owning_gather(store, section.axes, self.facts, self.buffers[store.buffer]) or 0

    def _skip_others(self, node: Store, gather: Gather, level: Level) -> None:
        """Ends a point whose place is another thread's."""
        found = self.body.place_of(node.index, gather, node.mask, self.buffers[node.buffer], level)
        level.add(f"if ({found} < own_0 || {found} >= own_1) continue;")

    def _share_out(self, phase: Phase, gather: Gather, loops: Sequence[Loop], level: Level, top: Level) -> None:
        """The loops of the phase within one turn for each thread, with its range of positions."""
        kind, size, count = self.body.index_type, self.body.index(sympy.sympify(gather.size)), self.body.fresh("owners")
        top.add(f"const int {count} = threads >= {owners(phase.sections[0].axes)} && {self.costs.worth_threads(phase)} ? threads : 1;")
        top.add(f"#pragma omp parallel for schedule(static) num_threads({count}) if({count} > 1)")
        top.add(f"for (int own = 0; own < {count}; ++own) {{")
        top.add(f"const {kind} own_0 = (int64_t){size} * own / {count}, own_1 = (int64_t){size} * (own + 1) / {count};")
        in_order(loops, level.lines, kind, None, top)
        top.add("}")
