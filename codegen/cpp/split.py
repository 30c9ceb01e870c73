"""Reductions to few results, in chunks that threads share: each chunk of the reduced axis has results of its own, which are then combined.

How many chunks there are depends on sizes alone, and they are combined in order, so that the number of threads does not show.
"""

from __future__ import annotations

from collections.abc import Sequence

from precast.codegen.common.value_facts import static_product
from precast.codegen.cpp.body import Level
from precast.codegen.cpp.costs import PARALLEL_NS, Costs
from precast.codegen.cpp.loops import Loops
from precast.codegen.cpp.planning.sections import LANES, Phase, Section
from precast.codegen.cpp.planning.wide_lanes import ROWS_OF_CHUNK
from precast.codegen.cpp.reductions import COMBINERS, Accumulator
from precast.codegen.cpp.sharing import Loop, in_order, in_pieces
from precast.codegen.cpp.types import COMPUTE
from precast.lowering.ir.nodes import Axis
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ir.sizes import known

CHUNKS = 64
"""Pieces of work for threads, about, where the loops around a reduction do not make as many."""

CHUNK_NS = 1000.0
"""Estimated time of a chunk at least: combining what it yields takes some ns for each of its results."""

PARTS = 1 << 14
"""Results of all chunks of wide lanes together, about at most: combining so many takes some microseconds."""

PART_OF, MOST_PARTS = 1024, 1 << 16
"""Of so many elements one more such result is made, up to a number that a stack has room for."""


class Split:
    """Writes the reductions of a phase's first section in chunks."""

    def __init__(self, loops: Loops, costs: Costs) -> None:
        self.loops = loops
        self.body = loops.body
        self.costs = costs

    def chunks(self, phase: Phase, estimate: float) -> int:
        """In how many chunks at most; 0 where the loops around feed the threads, or where more than the reductions is left to do."""
        first, *rest = phase.sections
        if not self.splits(first) or first.kept or phase.tile or phase.rows or any(s.axes or s.row is not None for s in rest):
            return 0
        if not all(known(a.extent) for a in phase.outer) or not phase.outer:
            return 0
        return self.most(phase, estimate)

    def most(self, phase: Phase, estimate: float) -> int:
        """How many chunks make up for the loops around that there are not, where such a chunk is long enough; 0 where one is as good."""
        trips = self._trips(phase)
        if not trips or estimate < PARALLEL_NS:
            return 0
        most = min(-(-CHUNKS // trips), int(estimate / CHUNK_NS / trips) + 1, *self._of_wide_lanes(phase, trips))
        return most if most > 1 else 0

    def _of_wide_lanes(self, phase: Phase, trips: int) -> tuple[int, ...]:
        """Limits to the number of chunks whose results are many: those travel between the caches of cores."""
        rows = static_product(a.extent for a in phase.sections[0].axes)
        if phase.lane is None or phase.lanes == LANES or rows is None:
            return ()
        lanes = trips * self.loops.lanes(phase.lane)
        return rows // ROWS_OF_CHUNK, min(MOST_PARTS, max(PARTS, rows * lanes // PART_OF)) // lanes

    def splits(self, section: Section) -> bool:
        """Whether a section of reductions can run in chunks of its first axis, whose partial results are then combined in order."""
        if not section.reduces or section.stores or not section.axes:
            return False
        return all(r.op in COMBINERS for r in section.reduces)

    def write(self, phase: Phase, chunks: int, top: Level) -> Level:
        """The chunks' loops, into `top`. What follows belongs into the level that is given back, which has the combined results; where the
        phase has outer loops it is put into `top` by `finish`.
        """
        body, section, lane = self.body, phase.sections[0], phase.lane
        axis, kind, around = self._axis(section, chunks), body.index_type, self.around(phase)
        name, extent = body.variable(axis.symbol), body.extent(axis)
        step, count, chunk = (body.fresh(p) for p in ("step", "chunks", "c"))
        top.add(f"const int64_t {step} = max_index(((int64_t){extent} + {chunks - 1}) / {chunks}, {self._least(phase, axis)});")
        top.add(f"const {kind} {count} = ({kind})(({extent} + {step} - 1) / {step});")
        level = self._level(phase, len(around) + 2)
        level.add(f"const {kind} {name}_0 = ({kind})({chunk} * {step});")
        level.add(f"const {kind} {name}_1 = {extent} - {name}_0 > {step} ? ({kind})({name}_0 + {step}) : {extent};")
        body.path.append(level)
        if lane is not None:
            self.loops.lane_bounds(lane, self.loops.lanes(lane), level)
            accumulators = self.loops.lane_reduces(section, lane, level, (axis,), self._points(phase, axis, chunks))
        else:
            accumulators = self.loops.row_reduces(section, level, (axis,))
        body.path.pop()
        parts = self._keep(phase, chunks, f"{self._number(phase)} * {chunks} + {chunk}", accumulators, level, top)
        pragma, work = f"num_threads(threads) if({self.costs.worth_threads(phase)})", self.costs.work(phase, self.costs.serial_ns(phase))
        loops = [*around, Loop(chunk, count)]
        if work is not None:
            in_pieces(loops, level.lines, kind, pragma, work, top)
        else:
            in_order(loops, level.lines, kind, pragma, top)
        into = self._level(phase, len(around) + 1) if around else top
        if lane is not None:
            self.loops.lane_bounds(lane, self.loops.lanes(lane), into)
        self._combine(phase, accumulators, into, parts, count, f"{self._number(phase)} * {chunks} + c")
        return into

    def _keep(self, phase: Phase, chunks: int, place: str, accumulators: Sequence[Accumulator], level: Level, top: Level) -> dict[str, str]:
        """Stores what a chunk yields into arrays, declared in `top`; their names by those of the accumulators' variables."""
        width = self.loops.width
        lanes = 1 if phase.lane is None else width
        parts = {}
        for acc in accumulators:
            for kind, variable, _ in acc.variables:
                part = parts[variable] = self.body.fresh("part")
                top.add(f"{kind} {part}[{self._trips(phase) * chunks * lanes}];")
                if phase.lane is None:
                    level.add(f"{part}[{place}] = {variable};")
                else:
                    level.add(f"for (int l = 0; l < {width}; ++l) {part}[({place}) * {width} + l] = {_bare(variable)}[l];")
        return parts

    def finish(self, phase: Phase, level: Level, top: Level) -> None:
        """The loops around what follows the reductions."""
        in_order(self.around(phase), level.lines, self.body.index_type, None, top)

    def around(self, phase: Phase) -> list[Loop]:
        """The phase's outer loops."""
        body, lane = self.body, phase.lane
        loops = [Loop(body.variable(a.symbol), body.extent(a)) for a in phase.outer if a is not lane]
        return loops if lane is None else [*loops, Loop(f"{body.variable(lane.symbol)}_0", body.extent(lane), self.loops.lanes(lane))]

    def _level(self, phase: Phase, indent: int) -> Level:
        return Level(frozenset(a.symbol for a in phase.outer if a is not phase.lane), indent)

    def _axis(self, section: Section, chunks: int) -> Axis:
        """The axis that is cut: the outermost one that is long enough, else the longest."""
        long = [a for a in section.axes if not known(a.extent) or int(a.extent) >= 2 * chunks]
        return long[0] if long else max(section.axes, key=lambda a: int(a.extent))

    def _least(self, phase: Phase, axis: Axis) -> int:
        """Points of the axis at least in a chunk."""
        return max(1, int(CHUNK_NS / self.costs.step_ns(phase, axis)))

    def _points(self, phase: Phase, axis: Axis, chunks: int) -> int | None:
        """Points of the reduction in a chunk at most."""
        others = static_product(a.extent for a in phase.sections[0].axes if a is not axis)
        if others is None or not known(axis.extent):
            return None
        return others * max(-(-int(axis.extent) // chunks), self._least(phase, axis))

    def _trips(self, phase: Phase) -> int:
        """Rounds of the loops around."""
        points = static_product(a.extent for a in phase.outer if a is not phase.lane)
        assert points is not None
        return points if phase.lane is None else points * -(-int(phase.lane.extent) // self.loops.lanes(phase.lane))

    def _number(self, phase: Phase) -> str:
        """The number of the current point of the outer loops."""
        text = "0"
        for a in (a for a in phase.outer if a is not phase.lane):
            text = f"({text} * {int(a.extent)} + {self.body.variable(a.symbol)})"
        if phase.lane is not None:
            lanes = self.loops.lanes(phase.lane)
            text = f"({text} * {-(-int(phase.lane.extent) // lanes)} + {self.body.variable(phase.lane.symbol)}_0 / {lanes})"
        return text

    def _combine(
        self, phase: Phase, accumulators: Sequence[Accumulator], into: Level, parts: dict[str, str], count: str, place: str
    ) -> None:
        """Folds the chunks' results in ascending order (f32 sums in f64), and names the whole."""
        lanes, width = phase.lane is not None, self.loops.width
        every = f"for (int l = 0; l < {width}; ++l) "
        for r, acc in zip(phase.sections[0].reduces, accumulators, strict=True):
            wide = r.op is ReduceOp.SUM and r.dtype.compute is DType.F32
            main, *flags = acc.variables
            lines = []
            forms = [COMBINERS[r.op], *["{a} |= {b};"] * len(flags)]
            for form, (kind, name, start) in zip(forms, [("double" if wide else main[0], *main[1:]), *flags], strict=True):
                bare = _bare(name)
                into.add(f"{kind} {bare}[{width}]; {every}{bare}[l] = {start};" if lanes else f"{kind} {name} = {start};")
                part = f"{parts[name]}[({place}) * {width} + l]" if lanes else f"{parts[name]}[{place}]"
                lines.append(form.format(a=f"{bare}[l]" if lanes else name, b=part))
            into.add(f"for ({self.body.index_type} c = 0; c < {count}; ++c) {every if lanes else ''}{{ {' '.join(lines)} }}")
            text = f"({'(float)' if wide else ''}{acc.result})"
            if not lanes:
                result = self.body.fresh("r")
                into.add(f"const {COMPUTE[r.dtype]} {result} = {text};")
                text = result
            self.body.made[id(r)] = text


def _bare(name: str) -> str:
    """The array of an accumulator of lanes."""
    return name.split("[")[0]
