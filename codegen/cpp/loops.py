"""The loops of one section in C++: vectorised along its own last axis or over lanes of an outer one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from precast.codegen.common.index_facts import replace_symbols, stride_along
from precast.codegen.common.value_facts import static_product
from precast.codegen.cpp.body import Body, Level, ScanState
from precast.codegen.cpp.ops import render
from precast.codegen.cpp.planning.loop_plan import has_loop
from precast.codegen.cpp.planning.sections import LANES, ROW_LIMIT, Section
from precast.codegen.cpp.planning.segments import SHORT
from precast.codegen.cpp.reductions import Accumulator, extreme_of_lanes, in_two_levels, update_lines
from precast.codegen.cpp.types import COMPUTE, load, store
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Buffer, Gather, Load, Reduce, Scan, Store, Value, operands, walk
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import known

RUN = 4096
"""Points of a row whose sum is one f32 number; sums of more points are sums of such."""

ROWS = 512
"""The same of a column, where each lane has a sum of its own."""

HALVES = 1024
"""Points of a block of float16 elements, which are converted as one: 4 KiB of f32."""

MOST_HALVES = 6
"""Buffers of such blocks in one loop."""


@dataclass
class Halves:
    """Blocks of float16 elements as f32: the lines before and behind the loop over a block, and the accesses (by id) that they serve."""

    values: list[int] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    behind: list[str] = field(default_factory=list)


AHEAD = 2
"""Rows from one to that whose lines are asked for meanwhile."""

NEAR = 1 << 13
"""Bytes between two rounds at most, of which all lines are asked for."""

ASK = """
INLINE void ask_for_row(const void* p, int64_t step, int64_t bytes) {
  const __UINTPTR_TYPE__ first = (__UINTPTR_TYPE__)p + (__UINTPTR_TYPE__)step;
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const void*)(first + (__UINTPTR_TYPE__)at));
}
"""
"""Addresses behind a buffer's end are asked for in vain, and do no harm."""


def helpers(source: str) -> str:
    """What `source` needs of this file."""
    return ASK if "ask_for_row(" in source else ""


class Loops:
    """Writes sections into the level around them."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.buffers = body.buffers
        self.width = LANES
        """Lanes that the current phase takes at once."""
        self.halves: dict[int, str] = {}
        """Where stores of float16 (by id) leave their elements as f32."""

    def lane_bounds(self, axis: Axis, width: int, level: Level) -> None:
        name, extent = self.body.variable(axis.symbol), self.body.extent(axis)
        if known(axis.extent) and int(axis.extent) % width == 0:
            level.add(f"const {self.body.index_type} {name}_1 = {name}_0 + {width};")
        else:
            level.add(f"const {self.body.index_type} {name}_1 = {name}_0 + {width} < {extent} ? {name}_0 + {width} : {extent};")

    def lanes(self, axis: Axis) -> int:
        return min(self.width, max(1, int(axis.extent))) if known(axis.extent) else self.width

    # sections vectorised along their own last axis

    def section(self, section: Section, parent: Level, blocked: tuple[Axis, ...] = ()) -> None:
        if section.row is not None:
            self._declare_row(section.row, section.axes, parent)
        alone = parent is self.body.path[0]  # one result a kernel: exactness is cheap there
        accumulators = self.row_reduces(section, parent, blocked, wide=alone)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            name = self.body.fresh("r")
            parent.add(f"const {COMPUTE[r.dtype]} {name} = {acc.result};")
            self.body.made[id(r)] = name

    def row_reduces(self, section: Section, parent: Level, blocked: tuple[Axis, ...] = (), wide: bool = False) -> list[Accumulator]:
        """The loops of a section; the accumulators of its reductions."""
        accumulators = [self._row_accumulator(r, section, wide) for r in section.reduces]
        self._section_loops(section, accumulators, parent, blocked)
        return accumulators

    def _declare_row(self, row: Buffer, axes: tuple[Axis, ...], parent: Level) -> None:
        self.buffers[row.name], self.body.pointers[row.name] = row, self.body.fresh("row")
        self.body.ranges |= {a.symbol: (0, int(a.extent) - 1) for a in axes}
        parent.add(f"{COMPUTE[row.dtype]} {self.body.pointers[row.name]}[{row.size[0]}];")

    def _section_loops(self, section: Section, accumulators: list[Accumulator], parent: Level, blocked: tuple[Axis, ...]) -> None:
        body = self.body
        for acc in accumulators:
            for kind, name, start in acc.variables:
                parent.add(f"{kind} {name} = {start};")
        self.declare_scans(section, parent, "")
        levels = self._open(section.axes, parent)
        inner = levels[-1] if levels else parent
        for read, gather in section.ahead:
            levels[0].add(self._ask_ahead(read, gather, section.axes[0]))
        short = section.span is not None and section.span[1] - section.span[0] < SHORT
        simd = bool(levels) and not short and self._vectorises(section, accumulators)
        inner.simd = simd
        halves = self._halves(section, blocked) if simd else None
        rows = self._fill_rows(section, parent, inner, blocked)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            for line in acc.update(body.value(r.value), body.linear(r.axes)):
                inner.add(line)
        for s in section.stores:
            self.store(s, inner)
        body.made.update(rows)
        del body.path[len(body.path) - len(levels) :]
        self._close(section.axes, levels, parent, accumulators, blocked, span=self._span(section, blocked, parent), halves=halves)
        if halves is not None:
            for key in halves.values:
                body.made.pop(key, None)
                self.halves.pop(key, None)

    def _halves(self, section: Section, blocked: tuple[Axis, ...]) -> Halves | None:
        """Buffers for the float16 elements that the last loop reads and writes in a row; None where there are none, or few."""
        axis = section.axes[-1]
        low, high = section.span or (0, int(axis.extent) if known(axis.extent) else None)
        if self.body.tiles or section.cuts is not None or (high is not None and high - low < LANES):
            return None
        roots = [r.value for r in section.reduces] + [v for s in section.stores for v in store_roots(s)]
        accesses: list[Load | Store] = [n for n in self._evaluated(roots) if isinstance(n, Load)]
        accesses += [s for s in section.stores if s.mode == "set"]
        found = [a for a in accesses if self.buffers[a.buffer].dtype is DType.F16 and a.mask is None and not a.gathers]
        found = [a for a in found if stride_along(sympy.sympify(a.index), axis.symbol) == 1][:MOST_HALVES]
        if not found:
            return None
        name = self.body.variable(axis.symbol)
        begin, end = (f"{name}_0", f"{name}_1") if axis in blocked else (str(low), self.body.extent(axis) if high is None else str(high))
        if not (known(axis.extent) and int(axis.extent) <= HALVES):
            begin, end = f"{name}_b", f"{name}_e"
        halves = Halves()
        for access in found:
            row = self.body.fresh("half")
            memory = f"{self.body.pointers[access.buffer]} + {self.body.index(sympy.sympify(access.index), {axis.symbol: begin})}"
            halves.values.append(id(access))
            halves.before.append(f"float {row}[{HALVES}];")
            if isinstance(access, Load):
                halves.before.append(f"halves_to_floats({row}, {memory}, {end} - {begin});")
                self.body.made[id(access)] = f"{row}[{name} - {begin}]"
            else:
                halves.behind.append(f"floats_to_halves({memory}, {row}, {end} - {begin});")
                self.halves[id(access)] = f"{row}[{name} - {begin}]"
        return halves

    def _evaluated(self, roots: list[Value]) -> list[Value]:
        """What is evaluated for `roots` where they stand: not what is made already, nor what lies within reductions."""
        found: list[Value] = []
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if id(node) in seen or id(node) in self.body.made or isinstance(node, Reduce):
                continue
            seen.add(id(node))
            found.append(node)
            stack.extend(operands(node))
        return found

    def _ask_ahead(self, read: Load, gather: Gather, rows: Axis) -> str:
        """A call that asks for the lines of a later row of what a load gathers from."""
        size = self.buffers[read.buffer].dtype.itemsize
        row = replace_symbols(read.index, {gather.symbol: sympy.S.Zero})
        step = stride_along(read.index, rows.symbol)
        assert step is not None
        place = f"{self.body.pointers[read.buffer]} + {self.body.index(row)}"
        return f"ask_for_row({place}, {AHEAD * size} * {self.body.index(step)}, {self.body.index(sympy.sympify(gather.size))} * {size});"

    def ask_for_next(self, sections: Sequence[Section], rows: Axis, level: Level) -> None:
        """Asks for what sections read two rounds of the loop over `rows` later, of each buffer once, where that lies close to what they
        read now: blocks that take turns between far places leave prefetchers no order to foresee.
        """
        asked: set[str] = set()
        for section in sections:
            nodes = list(walk(*(v for s in section.stores for v in store_roots(s))))
            inner = {a.symbol for n in nodes if isinstance(n, Reduce) for a in n.axes} | {a.symbol for a in section.axes}
            for read in nodes:
                if not isinstance(read, Load) or read.gathers or read.buffer in asked:
                    continue
                step, size = stride_along(read.index, rows.symbol), self.buffers[read.buffer].dtype.itemsize
                if isinstance(step, sympy.Integer) and 0 < int(step) * size <= NEAR:
                    asked.add(read.buffer)
                    first = replace_symbols(read.index, dict.fromkeys(inner, sympy.S.Zero))
                    nbytes = int(step) * size
                    level.add(f"ask_for_row({self.body.pointers[read.buffer]} + {self.body.index(first)}, {AHEAD * nbytes}, {nbytes});")

    def _span(self, section: Section, blocked: tuple[Axis, ...], parent: Level) -> tuple[str, str] | None:
        """Where the last loop of a section begins and ends; None: with its block or its axis."""
        span = None if section.span is None else (str(section.span[0]), str(section.span[1]))
        if section.cuts is None:
            return span
        body, axis = self.body, section.axes[-1]
        name = body.variable(axis.symbol)
        begin, end = span or ((f"{name}_0", f"{name}_1") if axis in blocked else ("0", body.extent(axis)))
        low, high = body.fresh("low"), body.fresh("high")
        first, last = begin, end
        for place in section.cuts.low:
            first = f"max_index({first}, {body.index(place)})"
        for place in section.cuts.high:
            last = f"min_index({last}, {body.index(place)})"
        parent.add(f"const {body.index_type} {low} = ({body.index_type})min_index({first}, {end});")
        parent.add(f"const {body.index_type} {high} = ({body.index_type})max_index({last}, {low});")
        return ((begin, low), (low, high), (high, end))[section.cuts.part]

    def _fill_rows(self, section: Section, parent: Level, inner: Level, blocked: tuple[Axis, ...]) -> dict[int, str]:
        """Stores a section's kept values and positions into row buffers; the values' names for the sections that follow, by value."""
        if not section.kept and not section.positions:
            return {}
        body, (axis,) = self.body, section.axes
        room = section.room or (axis.extent if known(axis.extent) else ROW_LIMIT)
        name = body.variable(axis.symbol)
        place = f"{name} - {name}_0" if axis in blocked else name

        def row(kind: str, value: str) -> str:
            row = body.fresh("row")
            parent.add(f"{kind} {row}[{room}];")
            inner.add(f"{row}[{place}] = {value};")
            return f"{row}[{place}]"

        found = {
            (id(gather), id(load.mask)): row(
                body.index_type, body.place_of(load.index, gather, load.mask, self.buffers[load.buffer], inner)
            )
            for load, gather in section.positions
        }
        rows = {id(value): row(COMPUTE[value.dtype], body.value(value)) for value in section.kept}
        body.positions |= found
        return rows

    def _row_accumulator(self, reduce: Reduce, section: Section, wide: bool = False) -> Accumulator:
        return (None if wide else self._in_two_levels(reduce, section, RUN)) or self._accumulator(reduce, wide=wide)

    def _in_two_levels(self, reduce: Reduce, section: Section, most: int, index: str = "", points: int | None = None) -> Accumulator | None:
        """A sum in two levels, where it has more than `most` points, or an unknown number of them; `points`: of a piece of the section."""
        points = static_product(a.extent for a in section.axes) if points is None else points
        if not section.axes or (points is not None and points <= most):
            return None
        return in_two_levels(reduce.op, reduce.dtype, self.body.fresh, index)

    def _accumulator(self, reduce: Reduce, index: str = "", wide: bool = False) -> Accumulator:
        acc, extra = self.body.fresh("acc"), self.body.fresh("n")
        return update_lines(reduce.op, reduce.dtype, reduce.value.dtype, acc + index, extra + index, wide=wide)

    def _open(self, axes: tuple[Axis, ...], parent: Level) -> list[Level]:
        levels = []
        for number, axis in enumerate(axes):
            levels.append(Level(frozenset({axis.symbol}), parent.indent + number + 1))
        self.body.path += levels
        return levels

    def _close(
        self,
        axes: tuple[Axis, ...],
        levels: list[Level],
        parent: Level,
        accumulators: list[Accumulator],
        blocked: tuple[Axis, ...],
        added: tuple[int, list[str]] | None = None,
        span: tuple[str, str] | None = None,
        halves: Halves | None = None,
    ) -> None:
        """Writes the loops into `parent`; the last runs over `span`, if any. `added`: lines behind the loop of the axis at this position,
        which runs in blocks of `ROWS`. `halves`: the last loop's blocks of such.
        """
        inner: list[str] = []
        for number in reversed(range(len(axes))):
            level, axis = levels[number], axes[number]
            pad = "  " * (level.indent - 1)
            name = self.body.variable(axis.symbol)
            bounds = (f"{name}_0", f"{name}_1") if axis in blocked else ("0", None)
            if span is not None and number == len(axes) - 1:
                bounds = span
            parts = [a for a in accumulators if a.part is not None] if number == len(axes) - 1 else []
            behind = added[1] if added is not None and added[0] == number else []
            own = halves if number == len(axes) - 1 else None
            most = HALVES if own else RUN if parts else ROWS
            blocks = bool(parts or behind or own) and not (known(axis.extent) and int(axis.extent) <= most)
            if blocks:
                begin, end = bounds
                bounds = f"{name}_b", f"{name}_e"
            lines = [f"{pad}{self.body.loop_header(axis, *bounds)} {{", *level.lines, *inner, f"{pad}}}"]
            if level.simd:
                lines = self._simd(level, accumulators, pad) + lines + self._reports(level, pad)
            if parts:
                lines = [
                    *(f"{pad}{kind} {part} = {start};" for kind, part, start in (a.part for a in parts if a.part is not None)),
                    *lines,
                    *(f"{pad}{a.variables[0][1]} += (double){a.part[1]};" for a in parts if a.part is not None),
                ]
            lines += [pad + line for line in behind]
            if own is not None:
                lines = [f"{pad}{line}" for line in own.before] + lines + [f"{pad}{line}" for line in own.behind]
            if blocks:
                lines = self._in_blocks(axis, begin, end or self.body.extent(axis), lines, pad, most)
            elif parts or own:
                lines = [f"{pad}{{", *lines, f"{pad}}}"]
            inner = lines
        parent.lines += inner

    def _in_blocks(self, axis: Axis, begin: str, end: str, lines: list[str], pad: str, most: int) -> list[str]:
        """The loop over `axis` that `lines` hold, in pieces of at most so many points."""
        name, kind = self.body.variable(axis.symbol), self.body.index_type
        return [
            f"{pad}for ({kind} {name}_b = {begin}; {name}_b < {end}; {name}_b += {most}) {{",
            f"{pad}const {kind} {name}_e = {end} - {name}_b > {most} ? {name}_b + {most} : {end};",
            *lines,
            f"{pad}}}",
        ]

    def _simd(self, level: Level, accumulators: list[Accumulator], pad: str) -> list[str]:
        flags = self.body.bad.get(id(level), [])
        clauses = [c for a in accumulators for c in a.clauses] + [f"max:{f}" for f in flags]
        declared = [f"{pad}int64_t {f} = INT64_MIN;" for f in flags]
        return [*declared, f"{pad}#pragma omp simd" + "".join(f" reduction({c})" for c in clauses)]

    def _reports(self, level: Level, pad: str) -> list[str]:
        return [pad + level.names[("bad", flag)] for flag in self.body.bad.pop(id(level), [])]

    def _vectorises(self, section: Section, accumulators: list[Accumulator]) -> bool:
        if any(not a.clauses for a in accumulators) or not all(self._apart(s, section.axes[-1]) for s in section.stores):
            return False
        roots = [r.value for r in section.reduces] + [v for s in section.stores for v in store_roots(s)]
        return not has_loop(roots, set(self.body.made))

    def _apart(self, store: Store, axis: Axis) -> bool:
        """Whether a store overwrites, or updates another place at each point of the axis."""
        if store.mode == "set":
            return True
        step = stride_along(sympy.sympify(store.index), axis.symbol)
        steady = all(axis.symbol not in self.body.facts.deps(g.value) for g in store.gathers)
        return steady and isinstance(step, int | sympy.Integer) and step != 0 and store.mask is None

    def declare_scans(self, section: Section, parent: Level, lanes: str) -> None:
        roots = [v for s in section.stores for v in store_roots(s)]
        for node in walk(*roots):
            if not isinstance(node, Scan):
                continue
            acc, best = self.body.fresh("acc"), self.body.fresh("n")
            variables = update_lines(node.op, node.dtype, node.value.dtype, acc, best, scan=True).variables
            index = f"[{lanes}]" if lanes else ""
            self._declare(variables, parent, lanes)
            self.body.scans[id(node)] = ScanState(acc + index, best + index)

    def _declare(self, variables: tuple[tuple[str, str, str], ...], parent: Level, lane: str) -> None:
        for kind, name, start in variables:
            if not lane:
                parent.add(f"{kind} {name} = {start};")
                continue
            bare = name.split("[")[0]
            parent.add(f"{kind} {bare}[{self.width}];")
            parent.add(f"for (int l = 0; l < {self.width}; ++l) {bare}[l] = {start};")

    # sections vectorised over lanes of an outer axis

    def lane_section(self, section: Section, lane: Axis, parent: Level) -> None:
        for r, acc in zip(section.reduces, self.lane_reduces(section, lane, parent), strict=True):
            self.body.made[id(r)] = f"({acc.result})"

    def lane_reduces(
        self, section: Section, lane: Axis, parent: Level, blocked: tuple[Axis, ...] = (), points: int | None = None
    ) -> list[Accumulator]:
        """The loops of a section over lanes; the accumulators of its reductions, arrays of lanes. `points`: rows at most, of a piece."""
        name = self.body.variable(lane.symbol)
        index = f"{name} - {name}_0"
        accumulators = [self._column_accumulator(r, section, index, points) for r in section.reduces]
        for acc in accumulators:
            self._declare(acc.variables + (() if acc.part is None else (acc.part,)), parent, index)
        self.declare_scans(section, parent, index)
        self.lane_stores(section, lane, parent, (*blocked, lane), accumulators)
        return accumulators

    def lane_stores(
        self, section: Section, lane: Axis, parent: Level, blocked: tuple[Axis, ...], accumulators: Sequence[Accumulator] = ()
    ) -> None:
        """The loops of a section with the lanes' loop inside; those over axes of `blocked` have bounds of their own."""
        body = self.body
        levels = self._open((*section.axes, lane), parent)
        inner = levels[-1]
        roots = [r.value for r in section.reduces] + [v for s in section.stores for v in store_roots(s)]
        looped = any(isinstance(n, Reduce) and has_loop((n,), set(body.made)) for n in walk(*roots) if id(n) not in body.made)
        inner.simd = not looped and all(s.mode == "set" for s in section.stores)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            for line in acc.update(body.value(r.value), body.linear(r.axes)):
                inner.add(line)
        for s in section.stores:
            self.store(s, inner)
        del body.path[len(body.path) - len(levels) :]
        added = self._add_up(accumulators, self.lanes(lane))
        self._close((*section.axes, lane), levels, parent, [], blocked, (self._few_rows(section.axes), added) if added else None)

    def _column_accumulator(self, reduce: Reduce, section: Section, index: str, points: int | None) -> Accumulator:
        found = self._in_two_levels(reduce, section, ROWS, f"[{index}]", points)
        if found is None and reduce.op in (ReduceOp.MIN, ReduceOp.MAX):
            found = extreme_of_lanes(reduce.op, reduce.dtype, f"{self.body.fresh('acc')}[{index}]")
        return found or self._accumulator(reduce, f"[{index}]")

    def _add_up(self, accumulators: Sequence[Accumulator], lanes: int) -> list[str]:
        """The lines that add the lanes' sums of some rows to their sums of all."""
        parts = [(a.variables[0][1].split("[")[0], a.part[1].split("[")[0]) for a in accumulators if a.part is not None]
        adds = " ".join(f"{acc}[l] += (double){part}[l]; {part}[l] = 0.0f;" for acc, part in parts)
        return [f"for (int l = 0; l < {lanes}; ++l) {{ {adds} }}"] if parts else []

    def _few_rows(self, axes: tuple[Axis, ...]) -> int:
        """The position of the axis whose loop, with those inside of it, makes up at most `ROWS` rows, or is the innermost."""
        position, rows = len(axes) - 1, static_product(a.extent for a in axes[-1:]) or ROWS
        while position > 0 and (outer := static_product(a.extent for a in axes[position - 1 : position])) and rows * outer <= ROWS:
            position, rows = position - 1, rows * outer
        return position

    def store(self, node: Store, level: Level) -> None:
        body = self.body
        buffer = self.buffers[node.buffer]
        place = (
            body.tiles.get(id(node))
            or f"{body.pointers[node.buffer]}[{body._index_with_gathers(node.index, node.gathers, node.mask, buffer, level)}]"
        )
        value = body.value(node.value)
        if id(node) in self.halves:
            level.add(f"{self.halves[id(node)]} = {value};")
            return
        if node.mode != "set":
            value = self._combined(node, buffer, place, value)
        text = f"{place} = {store(buffer.dtype, value)};"
        level.add(f"if ({body.value(node.mask)}) {text}" if node.mask is not None else text)

    def _combined(self, node: Store, buffer: Buffer, place: str, value: str) -> str:
        op = {"add": Op.ADD, "mul": Op.MUL, "min": Op.MIN, "max": Op.MAX}[node.mode]
        compute = buffer.dtype.compute
        old = load(buffer.dtype, place)
        return (
            f"combine_{node.mode}({old}, {value})"
            if op in (Op.MIN, Op.MAX)
            else render(op, (f"({old})", f"({value})"), (compute, compute), compute)
        )
