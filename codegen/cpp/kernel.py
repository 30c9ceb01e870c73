"""One `Kernel` as one C++ function over raw pointers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import sympy

from precast.codegen.common.index_facts import free_symbols, stride_along, subexpressions
from precast.codegen.common.value_facts import Facts, static_product
from precast.codegen.cpp.body import Body, Level, ScanState
from precast.codegen.cpp.loop_plan import TILE, has_loop, plan, rows_that_may_not_fit, without_rows
from precast.codegen.cpp.loops import ROW_LIMIT, Phase, Section
from precast.codegen.cpp.ops import render
from precast.codegen.cpp.reductions import Accumulator, in_two_levels, update_lines
from precast.codegen.cpp.segments import SHORT
from precast.codegen.cpp.shared_updates import loops_apart, owners, owning_gather
from precast.codegen.cpp.types import COMPUTE, load, storage, store
from precast.lowering.analysis.effects import store_roots
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Axis, Buffer, Gather, Index, Kernel, Load, Reduce, Scan, Store, walk
from precast.lowering.ir.ranges import Interval, interval
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import known

LANES = 64
"""Lanes of a tile along an outer axis: four AVX-512 registers of f32, enough to hide latency."""

PARALLEL_NS = 3000.0
"""Estimated serial time above which a loop goes parallel (an OpenMP region costs about 1.2 us, its crossover lies near 3)."""

CHUNKS = 64
"""Pieces of a reduction that threads share; fixed, so that results do not depend on the number of threads."""

COMBINERS = {
    ReduceOp.SUM: "{a} += {b};", ReduceOp.PROD: "{a} *= {b};", ReduceOp.ANY: "{a} |= {b};", ReduceOp.ALL: "{a} &= {b};",
    ReduceOp.MIN: "{a} = {b} < {a} ? {b} : {a};", ReduceOp.MAX: "{a} = {b} > {a} ? {b} : {a};",
}  # fmt: skip

RUN = 4096
"""Points of a row whose sum is one f32 number; sums of more points are sums of such."""

ROWS = 512
"""The same of a column, where each lane has a sum of its own."""

VECTOR_NS = 0.006
"""Nanoseconds of one element through one vector instruction, from the measured crossovers of fma (64k) and gelu (8k elements)."""


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
        self.arguments = (*self.written, *(b for b in read if b not in self.written))
        self.ranges = self._ranges()
        self.symbols = self._size_symbols()
        pointers = {name: f"p{number}" for number, name in enumerate(self.arguments)}
        variables = {s: f"s{number}" for number, s in enumerate(self.symbols)}
        self.body = Body(self.facts, self.buffers, pointers, variables, self.ranges, self._index_type())

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
        for phase in plan(self.kernel, self.facts):
            total += self._phase(phase, top)
            if phase.outer or any(s.stores for s in phase.sections):  # what a phase of reductions alone made is in scope to the end
                self.body.made = dict(made)
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
        unsure = rows_that_may_not_fit(phase)
        if not unsure:
            return self._one_phase(phase, top)
        top.add(f"if ({' && '.join(f'{self._extent(a)} <= {ROW_LIMIT}' for a in unsure)}) {{")
        made, names = dict(self.body.made), dict(top.names)
        estimate = self._one_phase(phase, top)
        top.add("} else {")
        self.body.made, top.names = dict(made), dict(names)
        self._one_phase(without_rows(phase), top)
        top.add("}")
        self.body.made, top.names = made, names
        return estimate

    def _one_phase(self, phase: Phase, top: Level) -> float:
        body = self.body
        estimate = self._estimate(phase)
        chunk = self._chunk(phase, estimate)
        loops = [body.loop_header(a) for a in phase.outer if a is not phase.lane]
        if phase.lane is not None:
            low, width = body.variable(phase.lane.symbol) + "_0", self._lanes(phase.lane)
            loops.append(f"for ({body.index_type} {low} = 0; {low} < {self._extent(phase.lane)}; {low} += {width})")
        for axis, width in self._blocks(phase, chunk):
            low = body.variable(axis.symbol) + "_0"
            loops.append(f"for ({body.index_type} {low} = 0; {low} < {self._extent(axis)}; {low} += {width})")
        if not loops:
            for section in phase.sections:
                split = estimate >= PARALLEL_NS and self._splits(section)
                (self._split_section if split else self._section)(section, top)
            return estimate
        level = Level(frozenset(a.symbol for a in phase.outer if a is not phase.lane), len(loops) + 1)
        body.path.append(level)
        if phase.lane is not None:
            self._lane_bounds(phase.lane, self._lanes(phase.lane), level)
        blocked = self._blocks(phase, chunk)
        for axis, width in blocked:
            self._lane_bounds(axis, width, level)
        shared = self._shared_updates(phase, estimate)
        if isinstance(shared, Gather):
            self._skip_others(phase.sections[0].stores[0], shared, level)
        for section in phase.sections:
            if phase.lane is None:
                self._section(section, level, tuple(a for a, _ in blocked))
            else:
                self._lane_section(section, phase.lane, level)
        body.path.pop()
        if isinstance(shared, Gather):
            self._share_out(phase, shared, loops, top)
        else:
            self._pragma(phase, len(loops) if shared is None else shared, estimate, top)
        for number, header in enumerate(loops):
            top.lines.append("  " * (number + 1) + header + " {")
        top.lines += level.lines
        for number in reversed(range(len(loops))):
            top.lines.append("  " * (number + 1) + "}")
        return estimate

    def _blocks(self, phase: Phase, chunk: int) -> list[tuple[Axis, int]]:
        """Section axes that run in blocks, with the block's width."""
        if phase.tile:
            return [(a, TILE) for a in phase.tile]
        return [(phase.sections[0].axes[-1], chunk)] if chunk else []

    def _pragma(self, phase: Phase, depth: int, estimate: float, top: Level) -> None:
        symbolic = not all(known(a.extent) for section in phase.sections for a in (*phase.outer, *section.axes))
        if estimate < PARALLEL_NS and not symbolic or depth == 0:
            return
        collapse = f" collapse({depth})" if depth > 1 else ""
        top.add(f"#pragma omp parallel for{collapse} schedule(static) num_threads(threads) if({self._worth_threads(phase)})")

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
        body = self.body
        found = body.place_of(node.index, gather, node.mask, self.buffers[node.buffer], level)
        level.add(f"if ({found} < own_0 || {found} >= own_1) continue;")

    def _share_out(self, phase: Phase, gather: Gather, loops: list[str], top: Level) -> None:
        """The loops around those of the phase: one turn for each thread, with its range of positions."""
        kind, size, count = self.body.index_type, self.body.index(sympy.sympify(gather.size)), self.body.fresh("owners")
        top.add(f"const int {count} = threads >= {owners(phase.sections[0].axes)} && {self._worth_threads(phase)} ? threads : 1;")
        top.add(f"#pragma omp parallel for schedule(static) num_threads({count}) if({count} > 1)")
        bounds = f"const {kind} own_0 = (int64_t){size} * own / {count}, own_1 = (int64_t){size} * (own + 1) / {count};"
        loops[:1] = [f"for (int own = 0; own < {count}; ++own)", f"{bounds}\n    {loops[0]}"]

    def _worth_threads(self, phase: Phase) -> str:
        """When a loop goes parallel: sizes that are known only at run time are judged then."""
        terms = []
        for section in phase.sections:
            axes = dict.fromkeys((*phase.outer, *section.axes))
            if not all(known(a.extent) for a in axes):
                fixed = math.prod(int(a.extent) for a in axes if known(a.extent))
                rest = "".join(f" * (double){self._extent(a)}" for a in axes if not known(a.extent))
                terms.append(f"{fixed * self._work(phase, section) * VECTOR_NS / PARALLEL_NS:.6g}{rest}")
        return f"threads > 1 && {' + '.join(terms)} > 1.0" if terms else "threads > 1"

    def _lane_bounds(self, axis: Axis, width: int, level: Level) -> None:
        name, extent = self.body.variable(axis.symbol), self._extent(axis)
        if known(axis.extent) and int(axis.extent) % width == 0:
            level.add(f"const {self.body.index_type} {name}_1 = {name}_0 + {width};")
        else:
            level.add(f"const {self.body.index_type} {name}_1 = {name}_0 + {width} < {extent} ? {name}_0 + {width} : {extent};")

    def _extent(self, axis: Axis) -> str:
        return self.body.index(sympy.sympify(axis.extent))

    def _lanes(self, axis: Axis) -> int:
        return min(LANES, max(1, int(axis.extent))) if known(axis.extent) else LANES

    def _estimate(self, phase: Phase) -> float:
        """Serial nanoseconds of a phase; unknown sizes count as large."""
        total = 0.0
        for section in phase.sections:
            points = static_product(a.extent for a in dict.fromkeys((*phase.outer, *section.axes)))
            total += (1e9 if points is None else points) * self._work(phase, section) * VECTOR_NS
        return total

    def _work(self, phase: Phase, section: Section) -> float:
        """Vector instructions at one point of a section."""
        work = sum(self.facts.cost(r.value) + 1 for r in section.reduces)
        work += sum(2 + sum(self.facts.cost(v) for v in store_roots(s)) for s in section.stores)
        inline = [n for s in section.stores for v in store_roots(s) for n in walk(v) if isinstance(n, Reduce)]
        made = self._made(phase)
        return work + sum((static_product(a.extent for a in n.axes) or 64) * self.facts.cost(n.value) for n in inline if id(n) not in made)

    def _made(self, phase: Phase) -> set[int]:
        return {id(r) for s in phase.sections for r in s.reduces}

    def _chunk(self, phase: Phase, estimate: float) -> int:
        """Chunk of the innermost axis when the outer loops alone cannot feed the threads."""
        section = phase.sections[0]
        if phase.lane is not None or phase.tile or len(phase.sections) > 1 or section.reduces or not section.axes or estimate < PARALLEL_NS:
            return 0
        if any(isinstance(n, Scan) for s in section.stores for v in store_roots(s) for n in walk(v)):
            return 0
        outer = static_product(a.extent for a in phase.outer)
        if outer is not None and outer >= 64:
            return 0
        axis = section.axes[-1]
        if not known(axis.extent):
            return 4096
        size = -(-int(axis.extent) // 64)
        return max(1024, -(-size // 64) * 64) if int(axis.extent) > 1024 else 0

    # sections vectorised along their own last axis

    def _section(self, section: Section, parent: Level, blocked: tuple[Axis, ...] = ()) -> None:
        if section.row is not None:
            self._declare_row(section.row, section.axes, parent)
        alone = parent is self.body.path[0]  # one result a kernel: exactness is cheap there
        accumulators = [self._row_accumulator(r, section, wide=alone) for r in section.reduces]
        self._section_loops(section, accumulators, parent, blocked)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            name = self.body.fresh("r")
            parent.add(f"const {COMPUTE[r.dtype]} {name} = {acc.result};")
            self.body.made[id(r)] = name

    def _declare_row(self, row: Buffer, axes: tuple[Axis, ...], parent: Level) -> None:
        self.buffers[row.name], self.body.pointers[row.name] = row, self.body.fresh("row")
        self.body.ranges |= {a.symbol: (0, int(a.extent) - 1) for a in axes}
        parent.add(f"{COMPUTE[row.dtype]} {self.body.pointers[row.name]}[{row.size[0]}];")

    def _section_loops(self, section: Section, accumulators: list[Accumulator], parent: Level, blocked: tuple[Axis, ...]) -> None:
        body = self.body
        for acc in accumulators:
            for kind, name, start in acc.variables:
                parent.add(f"{kind} {name} = {start};")
        self._declare_scans(section, parent, "")
        levels = self._open(section.axes, parent)
        inner = levels[-1] if levels else parent
        short = section.span is not None and section.span[1] - section.span[0] < SHORT
        simd = bool(levels) and not short and self._vectorises(section, accumulators)
        inner.simd = simd
        rows = self._fill_rows(section, parent, inner)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            for line in acc.update(body.value(r.value), body.linear(r.axes)):
                inner.add(line)
        for s in section.stores:
            self._store(s, inner)
        body.made.update(rows)
        del body.path[len(body.path) - len(levels) :]
        self._close(section.axes, levels, parent, accumulators, blocked, span=section.span)

    def _fill_rows(self, section: Section, parent: Level, inner: Level) -> dict[int, str]:
        """Stores a section's kept values into row buffers; their names for the sections that follow, by value."""
        rows: dict[int, str] = {}
        for value in section.kept:
            (axis,) = section.axes
            row = self.body.fresh("row")
            place = f"{row}[{self.body.variable(axis.symbol)}]"
            parent.add(f"{COMPUTE[value.dtype]} {row}[{axis.extent if known(axis.extent) else ROW_LIMIT}];")
            inner.add(f"{place} = {self.body.value(value)};")
            rows[id(value)] = place
        return rows

    # a reduction to one point, split over threads

    def _splits(self, section: Section) -> bool:
        """Whether a section of reductions can run in chunks of its first axis, whose partial results are then combined in order."""
        if not section.reduces or section.stores or not section.axes:
            return False
        return all(r.op in COMBINERS for r in section.reduces)

    def _split_section(self, section: Section, top: Level) -> None:
        body, axis = self.body, section.axes[0]
        accumulators = [self._row_accumulator(r, section) for r in section.reduces]
        chunk = body.fresh("c")
        level = Level(frozenset(), top.indent + 1)
        parts = [(kind, name, start, body.fresh("part")) for acc in accumulators for kind, name, start in acc.variables]
        name, extent = body.variable(axis.symbol), self._extent(axis)
        step = body.fresh("step")
        level.add(f"const {body.index_type} {name}_0 = {chunk} * {step};")
        level.add(f"const {body.index_type} {name}_1 = {name}_0 + {step} < {extent} ? {name}_0 + {step} : {extent};")
        body.path.append(level)
        self._section_loops(section, accumulators, level, (axis,))
        body.path.pop()
        for kind, variable, _start, part in parts:
            top.add(f"{kind} {part}[{CHUNKS}];")
            level.add(f"{part}[{chunk}] = {variable};")
        top.add(f"const {body.index_type} {step} = ({extent} + {CHUNKS - 1}) / {CHUNKS};")
        phase = Phase((), (section,))
        top.add(f"#pragma omp parallel for schedule(static) num_threads(threads) if({self._worth_threads(phase)})")
        top.add(f"for ({body.index_type} {chunk} = 0; {chunk} < {CHUNKS}; ++{chunk}) {{")
        top.lines += level.lines
        top.add("}")
        self._combine(section, accumulators, top, {variable: part for _, variable, _, part in parts})

    def _combine(self, section: Section, accumulators: list[Accumulator], top: Level, parts: dict[str, str]) -> None:
        """Folds the chunks' results in ascending order (f32 sums in f64), so that the thread count does not show."""
        for r, acc in zip(section.reduces, accumulators, strict=True):
            wide = r.op is ReduceOp.SUM and r.dtype.compute is DType.F32
            main, *flags = acc.variables
            top.add(f"{'double' if wide else main[0]} {main[1]} = {main[2]};")
            for kind, name, start in flags:
                top.add(f"{kind} {name} = {start};")
            lines = [COMBINERS[r.op].format(a=main[1], b=f"{parts[main[1]]}[c]")] + [f"{name} |= {parts[name]}[c];" for _, name, _ in flags]
            top.add(f"for (int c = 0; c < {CHUNKS}; ++c) {{ {' '.join(lines)} }}")
            result = self.body.fresh("r")
            top.add(f"const {COMPUTE[r.dtype]} {result} = {'(float)' if wide else ''}{acc.result};")
            self.body.made[id(r)] = result

    def _row_accumulator(self, reduce: Reduce, section: Section, wide: bool = False) -> Accumulator:
        return (None if wide else self._in_two_levels(reduce, section, RUN)) or self._accumulator(reduce, wide=wide)

    def _in_two_levels(self, reduce: Reduce, section: Section, most: int, index: str = "") -> Accumulator | None:
        """A sum in two levels, where its section has more than `most` points, or an unknown number of them."""
        points = static_product(a.extent for a in section.axes)
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
        span: tuple[int, int] | None = None,
    ) -> None:
        """Writes the loops into `parent`; the last runs over `span`, if any. `added`: lines behind the loop of the axis at this position,
        which runs in blocks of `ROWS`.
        """
        inner: list[str] = []
        for number in reversed(range(len(axes))):
            level, axis = levels[number], axes[number]
            pad = "  " * (level.indent - 1)
            name = self.body.variable(axis.symbol)
            bounds = (f"{name}_0", f"{name}_1") if axis in blocked else ("0", None)
            if span is not None and number == len(axes) - 1:
                bounds = str(span[0]), str(span[1])
            parts = [a for a in accumulators if a.part is not None] if number == len(axes) - 1 else []
            behind = added[1] if added is not None and added[0] == number else []
            most = RUN if parts else ROWS
            blocks = bool(parts or behind) and not (known(axis.extent) and int(axis.extent) <= most)
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
            if blocks:
                lines = self._in_blocks(axis, begin, end or self._extent(axis), lines, pad, most)
            elif parts:
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
        steady = all(axis.symbol not in self.facts.deps(g.value) for g in store.gathers)
        return steady and isinstance(step, int | sympy.Integer) and step != 0 and store.mask is None

    def _declare_scans(self, section: Section, parent: Level, lanes: str) -> None:
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
            parent.add(f"{kind} {bare}[{LANES}];")
            parent.add(f"for (int l = 0; l < {LANES}; ++l) {bare}[l] = {start};")

    # sections vectorised over lanes of an outer axis

    def _lane_section(self, section: Section, lane: Axis, parent: Level) -> None:
        body = self.body
        name = body.variable(lane.symbol)
        index = f"{name} - {name}_0"
        accumulators = [self._column_accumulator(r, section, index) for r in section.reduces]
        for acc in accumulators:
            self._declare(acc.variables + (() if acc.part is None else (acc.part,)), parent, index)
        self._declare_scans(section, parent, index)
        levels = self._open((*section.axes, lane), parent)
        inner = levels[-1]
        roots = [r.value for r in section.reduces] + [v for s in section.stores for v in store_roots(s)]
        looped = any(isinstance(n, Reduce) and has_loop((n,), set(body.made)) for n in walk(*roots) if id(n) not in body.made)
        inner.simd = not looped and all(s.mode == "set" for s in section.stores)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            for line in acc.update(body.value(r.value), body.linear(r.axes)):
                inner.add(line)
        for s in section.stores:
            self._store(s, inner)
        del body.path[len(body.path) - len(levels) :]
        added = self._add_up(accumulators, self._lanes(lane))
        self._close((*section.axes, lane), levels, parent, [], (lane,), (self._few_rows(section.axes), added) if added else None)
        for r, acc in zip(section.reduces, accumulators, strict=True):
            body.made[id(r)] = f"({acc.result})"

    def _column_accumulator(self, reduce: Reduce, section: Section, index: str) -> Accumulator:
        return self._in_two_levels(reduce, section, ROWS, f"[{index}]") or self._accumulator(reduce, f"[{index}]")

    def _add_up(self, accumulators: list[Accumulator], lanes: int) -> list[str]:
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

    def _store(self, node: Store, level: Level) -> None:
        body = self.body
        buffer = self.buffers[node.buffer]
        place = f"{body.pointers[node.buffer]}[{body._index_with_gathers(node.index, node.gathers, node.mask, buffer, level)}]"
        value = body.value(node.value)
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
