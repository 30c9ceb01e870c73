"""The recomputation check of producer-consumer fusion: a reduction that reads a matrix must not be computed more than once.

Inlining a buffer that is computed from a reduction (by a bias or an activation) inlines the reduction, too, so all reductions in the
producer that a load depends on are checked.
"""

from __future__ import annotations

from collections.abc import Iterator

import sympy

from precast.lowering.analysis.kernel_facts import KernelFacts, points, reduction_levels
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Kernel, Reduce, walk
from precast.lowering.ir.sympy_calls import symbols_of
from precast.lowering.passes.fusion.fusion_groups import Group, Site, axes_of_producer

NESTED = 1 << 12
"""Points of the outer reduction times elements of the inner one's result up to which a reduction may run inside another one."""
NESTED_WORK = 1 << 16
"""The same, times the length of the inner one: what a single loop computes that was a parallel one."""


def reductions_stay_single(facts: KernelFacts, a: Group, b: Group, sites: list[Site]) -> str | None:
    """None, or a sentence that names a reduction of `a` which would be computed too often inside `b`."""
    if not a.reducing:
        return None
    runs: dict[tuple[int, tuple[sympy.Symbol, ...]], dict[tuple[sympy.Expr, ...], int]] = {}
    for site in sites:
        found = axes_of_producer(facts, a, site)
        if isinstance(found, str):
            continue  # its elements are numbered in another way: the merge decides
        mapping, missing = found
        axes = {x.symbol: x for x in (*b.axes, *site.binders, *missing)}
        extents = tuple((x.symbol, x.extent) for x in axes.values())
        bound = {x.symbol for x in site.binders}
        for member, level in _levels(facts, a, site.load.buffer):
            placed = dict(a.places[member].mapping)
            where = tuple(ix.substitute(placed[s], tuple(mapping.items()), extents) for s in level)
            used = {s for e in where for s in symbols_of(e)}
            outer = points(site.binders) * site.elements
            if used & bound and (outer > NESTED or outer * _length(facts, member) > NESTED_WORK):
                return "its reduction would run inside another one"
            runs.setdefault((member, level), {})[where] = points(tuple(axes[s] for s in used if s in axes))
    for (member, level), places in runs.items():
        step = facts.program.steps[member]
        assert isinstance(step, Kernel)
        if len(places) > 1 and sum(places.values()) > points(_axes(step, level)):
            return "its reduction would be computed again for each use"
    return None


def _levels(facts: KernelFacts, a: Group, buffer: str) -> Iterator[tuple[int, tuple[sympy.Symbol, ...]]]:
    """The reductions that the buffer depends on: the member of `a`, and the axes of that kernel that the reduction depends on."""
    pending, seen = [facts.writer[buffer]], set[int]()
    while pending:
        member = pending.pop()
        if member in seen:
            continue
        seen.add(member)
        step = facts.program.steps[member]
        assert isinstance(step, Kernel)
        for level in reduction_levels(step):
            yield member, tuple(sorted(level, key=str))
        pending += [
            facts.writer[load.buffer] for load, _ in facts.places[member] if load.buffer in a.stores and facts.writer[load.buffer] != member
        ]


def _length(facts: KernelFacts, member: int) -> int:
    """About how many elements the longest reduction of the kernel reads for one of its result."""
    step = facts.program.steps[member]
    assert isinstance(step, Kernel)
    return max((points(v.axes) for v in walk(*(s.value for s in step.stores)) if isinstance(v, Reduce)), default=1)


def _axes(kernel: Kernel, level: tuple[sympy.Symbol, ...]) -> tuple[Axis, ...]:
    return tuple(x for x in kernel.axes if x.symbol in level)
