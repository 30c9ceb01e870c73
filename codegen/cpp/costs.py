"""About how long loops take, and so which are worth threads and in what pieces."""

from __future__ import annotations

import math

from precast.codegen.common.value_facts import static_product
from precast.codegen.cpp.body import Body
from precast.codegen.cpp.planning.sections import Phase, Section
from precast.codegen.cpp.sharing import LONG_NS
from precast.lowering.analysis.effects import store_roots
from precast.lowering.ir.nodes import Axis, Reduce, Scan, walk
from precast.lowering.ir.sizes import known

PARALLEL_NS = 3000.0
"""Estimated serial time above which a loop goes parallel (an OpenMP region costs about 1.2 us, its crossover lies near 3)."""

VECTOR_NS = 0.006
"""Nanoseconds of one element through one vector instruction, from the measured crossovers of fma (64k) and gelu (8k elements)."""


class Costs:
    """Judges phases of one kernel; `body` writes the sizes that are known at run time only."""

    def __init__(self, body: Body) -> None:
        self.facts = body.facts
        self.body = body

    def serial_ns(self, phase: Phase) -> float:
        """Serial nanoseconds of a phase; unknown sizes count as large."""
        total = 0.0
        for section in phase.sections:
            if section.cuts is not None and section.cuts.part != 1:
                continue  # the part inside stands for all
            points = static_product(a.extent for a in dict.fromkeys((*phase.outer, *section.axes)))
            total += (1e9 if points is None else points) * self._work(phase, section) * VECTOR_NS * _share(section)
        return total

    def step_ns(self, phase: Phase, axis: Axis) -> float:
        """Serial nanoseconds of one step along an axis of the first section, within the outer loops; unknown sizes count as 1."""
        section = phase.sections[0]
        inner = [a for a in (*section.axes, phase.lane) if a is not None and a is not axis]
        points = math.prod(int(a.extent) for a in inner if known(a.extent))
        return max(points, 1) * self._work(phase, section) * VECTOR_NS

    def _work(self, phase: Phase, section: Section) -> float:
        """Vector instructions at one point of a section."""
        work = sum(self.facts.cost(r.value) + 1 for r in section.reduces)
        work += sum(2 + sum(self.facts.cost(v) for v in store_roots(s)) for s in section.stores)
        inline = [n for s in section.stores for v in store_roots(s) for n in walk(v) if isinstance(n, Reduce)]
        made = self._made(phase)
        return work + sum((static_product(a.extent for a in n.axes) or 64) * self.facts.cost(n.value) for n in inline if id(n) not in made)

    def _made(self, phase: Phase) -> set[int]:
        return {id(r) for s in phase.sections for r in s.reduces}

    def chunk(self, phase: Phase, estimate: float) -> int:
        """Chunk of the innermost axis when the outer loops alone cannot feed the threads."""
        section = phase.sections[0]
        parts = all(s.cuts is not None and s.span is None for s in phase.sections[1:])
        cases = all(s.case is not None and s.span is None for s in phase.sections)
        if phase.lane is not None or phase.tile or phase.rows or phase.blocks or phase.across or not (parts or cases):
            return 0
        if section.reduces or not section.axes or estimate < PARALLEL_NS:
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

    def worth_threads(self, phase: Phase) -> str:
        """When a loop goes parallel: sizes that are known only at run time are judged then."""
        terms = self._terms(phase)
        return f"threads > 1 && {' + '.join(terms)} > {PARALLEL_NS:.6g}" if terms else "threads > 1"

    def work(self, phase: Phase, estimate: float) -> str | None:
        """About how many ns a phase takes, where that is long enough to be shared in pieces or shows at run time only."""
        terms = self._terms(phase)
        return " + ".join(terms) if terms else f"{estimate:.6g}" if estimate >= LONG_NS else None

    def _terms(self, phase: Phase) -> list[str]:
        """Nanoseconds of the sections whose sizes show at run time."""
        terms = []
        for section in phase.sections:
            if section.cuts is not None and section.cuts.part != 1:
                continue
            axes = dict.fromkeys((*phase.outer, *section.axes))
            if not all(known(a.extent) for a in axes):
                fixed = math.prod(int(a.extent) for a in axes if known(a.extent))
                rest = "".join(f" * (double){self.body.extent(a)}" for a in axes if not known(a.extent))
                terms.append(f"{fixed * self._work(phase, section) * VECTOR_NS * _share(section):.6g}{rest}")
        return terms


def _share(section: Section) -> float:
    """The share of the outer loops' rounds in which a section runs."""
    if section.case is None:
        return 1.0
    axis, low, high = section.case
    return (high - low) / int(axis.extent)
