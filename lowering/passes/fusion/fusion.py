"""Fusion: which kernels become one, producers with consumers and siblings with each other. Decisions only; `fusion_groups.py` holds what is
known of a group, and its thresholds such as `MIN_ROWS`; `emit.py` builds the fused kernels.

The cost model counts bytes. Fusing a producer into its consumer saves writing and re-reading the buffer between them; it may cost
recomputation, parallelism or vector access. So a producer is fused unless

* the consumer would evaluate it more often than it has elements, and its value is not cheap;
* its reduction would serialise a large loop (fewer than `MIN_ROWS` independent rows), or be repeated, or be nested in another;
* the reduction runs along the axis that the fused kernel must vectorise;
* something between the two has to run in between, or a buffer is overwritten;
* the kernel would read or write more streams than fit registers and cache ways (`MAX_BUFFERS`).

Each refusal leaves one sentence in `Program.notes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from precast.lowering.analysis.dependencies import dependencies, nbytes_hint
from precast.lowering.analysis.headroom import Headroom
from precast.lowering.analysis.kernel_facts import KernelFacts, facts_of
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.ir.sizes import hint
from precast.lowering.passes.fusion.emit import emit
from precast.lowering.passes.fusion.fusion_groups import Group, Site, merge_places, ordered, scan_carries_over, single, sites_between
from precast.lowering.passes.fusion.reduction_reuse import reductions_stay_single

MAX_BUFFERS = 40
MAX_RECOMPUTE = 6
"""Operations per element that may be computed again, in units of a simple operation."""
CPU_GATHER = 8
"""What a load costs there whose neighbours lie apart: a vector of them is as many loads."""
MAX_MEMBERS = 128
MAX_SMALL = 1 << 22
"""Points of a kernel on a GPU up to which its launch counts."""
MAX_REPEATS = 16
"""As MAX_RECOMPUTE, for values that several passes over one row need (a row is not kept between passes): one exponential more, not two."""


@dataclass
class Fusion:
    """The state of one run of the pass."""

    program: Program
    rows_in_points: bool = False
    groups: dict[int, Group] = field(default_factory=dict)
    owner: list[int] = field(default_factory=list)  # step -> group
    after: dict[int, set[int]] = field(default_factory=dict)  # group -> groups that come later (may name absorbed groups)
    before: dict[int, set[int]] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    refused: set[tuple[int, int, int, int]] = field(default_factory=set)


def fuse_pointwise(program: Program, gather_cost: int = 0) -> Program:
    """Chains of pointwise kernels in which each value has one user: what the library epilogues are matched on."""
    return _fuse(program, pointwise_only=True, gather_cost=gather_cost)


def fuse_results(program: Program) -> Program:
    """Pointwise kernels once more, those whose result others need, too: what a later pass has made of kernels with reductions."""
    return _fuse(program, pointwise_only=True, survivors=True)


def fuse(program: Program, *, rows_in_points: bool = False, gather_cost: int = 0) -> Program:
    """Producers into consumers, reductions included. `rows_in_points`: a row's reductions that are needed elsewhere, too, may be stored by
    a kernel over the points of the rows. `gather_cost`: what computing a gathered load again costs, in simple operations.
    """
    return _fuse(program, pointwise_only=False, rows_in_points=rows_in_points, gather_cost=gather_cost)


def fuse_siblings(program: Program, growth: float, launches: bool = False) -> Program:
    """Neighbours over the same axes that read the same buffers. `launches`: any of the same small space, as each kernel costs a launch.
    `growth`: the share of the peak of memory that this may add to it.
    """
    facts, state = _start(program)
    _horizontal(state, facts, launches, Headroom(program, growth))
    return emit(program, facts, state.groups, state.owner, tuple(state.notes), again=True)


def _start(program: Program, rows_in_points: bool = False, gather_cost: int = 0) -> tuple[KernelFacts, Fusion]:
    """Each kernel a group of its own."""
    facts = facts_of(program, gather_cost)
    state = Fusion(program, rows_in_points)
    steps = program.steps
    before = dependencies(program)
    state.owner = list(range(len(steps)))
    for position, needed in enumerate(before):
        state.before[position] = set(needed)
        state.after.setdefault(position, set())
        for p in needed:
            state.after[p].add(position)
    for position, step in enumerate(steps):
        if isinstance(step, Kernel):
            state.groups[position] = single(position, step, facts)
    return facts, state


def _fuse(
    program: Program, *, pointwise_only: bool, survivors: bool = False, rows_in_points: bool = False, gather_cost: int = 0
) -> Program:
    """`survivors`: of pointwise kernels also those whose result is needed outside of the fused one."""
    facts, state = _start(program, rows_in_points, gather_cost)
    for sole in (True, False) if survivors or not pointwise_only else (True,):
        for position in range(len(program.steps)):
            if state.owner[position] in state.groups:
                _absorb(state, facts, state.owner[position], sole, pointwise_only)
    return emit(program, facts, state.groups, state.owner, tuple(state.notes), again=not pointwise_only)


def _absorb(state: Fusion, facts: KernelFacts, consumer: int, sole: bool, pointwise_only: bool) -> None:
    """Takes producers into this group, latest first, until none is left that may be fused."""
    while True:
        candidates = {state.owner[facts.writer[b]] for b in state.groups[consumer].loads if b in facts.defined}
        candidates.discard(consumer)
        for producer in sorted((c for c in candidates if c in state.groups), reverse=True):
            if _try(state, facts, producer, consumer, sole, pointwise_only):
                break
        else:
            return


def _try(state: Fusion, facts: KernelFacts, producer: int, consumer: int, sole: bool, pointwise_only: bool) -> bool:
    a, b = state.groups[producer], state.groups[consumer]
    key = (producer, len(a.members), consumer, len(b.members))
    if key in state.refused:
        return False
    survivors = [n for n in a.stores if facts.needed_outside(n, a.members | b.members)]
    if sole and survivors:
        return False
    if pointwise_only and (a.reducing or b.reducing):
        return False
    reason = _merged_or_reason(state, facts, a, b, survivors)
    if isinstance(reason, str):
        state.refused.add(key)
        if not sole or not survivors:
            state.notes[f"not fused: {a.name} into {b.name}: {reason}"] = None
        return False
    _union(state, producer, consumer, reason)
    return True


def _union(state: Fusion, producer: int, consumer: int, merged: Group) -> None:
    del state.groups[producer]
    state.groups[consumer] = merged
    for member in merged.members:
        state.owner[member] = consumer
    for table in (state.after, state.before):
        table[consumer] = {state.owner[g] for g in table[consumer] | table.pop(producer)} - {consumer}


def _merged_or_reason(state: Fusion, facts: KernelFacts, a: Group, b: Group, survivors: list[str]) -> Group | str:
    """The merged group, or the sentence that says why there is none."""
    if len(a.members) + len(b.members) > MAX_MEMBERS or len(a.loads | b.loads) + len(a.stores | b.stores) > MAX_BUFFERS:
        return "the kernel would use too many buffers at once"
    if a.overwrites & (b.loads | b.overwrites) or b.overwrites & a.loads:
        return "one overwrites a buffer that the other reads, so their order must stay"
    if _path_between(state, state.owner[min(a.members)], state.owner[max(b.members)]):
        return "a step between them needs the first one's result"
    sites = sites_between(facts, a, b)
    if isinstance(sites, str):
        return sites
    if a.scanned and not scan_carries_over(facts, a, b, sites):
        return "it holds a scan, and the other does not visit the same elements in the same loops"
    for rule in RULES:
        reason = rule(facts, a, b, sites)
        if reason is not None:
            return reason
    return merge_places(facts, a, b, sites, survivors, state.rows_in_points)


def _path_between(state: Fusion, start: int, goal: int) -> bool:
    """Whether `goal` depends on `start` through some third step."""
    limit = max(state.groups[goal].members)
    stack = [g for g in (state.owner[x] for x in state.after[start]) if g not in (start, goal)]
    seen = set(stack)
    while stack:
        group = stack.pop()
        for follower in state.after[group]:
            follower = state.owner[follower]
            if follower == goal:
                return True
            if follower in seen or follower == start:
                continue
            first = min(state.groups[follower].members) if follower in state.groups else follower
            if first < limit:
                seen.add(follower)
                stack.append(follower)
    return False


Rule = Callable[[KernelFacts, Group, Group, list[Site]], str | None]


def _rule_recompute(facts: KernelFacts, a: Group, b: Group, sites: list[Site]) -> str | None:
    for site in sites:
        if site.evaluations <= site.elements:
            continue
        if site.reducing:
            return "its reduction would be computed again for each use"
        # one extra evaluation of a few operations is cheaper than the memory traffic that it saves
        if a.costs[site.load.buffer] * (site.evaluations / max(site.elements, 1) - 1) > MAX_RECOMPUTE:
            return f"its values would be computed {site.evaluations // max(site.elements, 1)} times each"
    return None


def _rule_repeats(facts: KernelFacts, a: Group, b: Group, sites: list[Site]) -> str | None:
    uses: dict[str, list[Site]] = {}
    for site in sites:
        uses.setdefault(site.load.buffer, []).append(site)
    for name, found in uses.items():
        if name not in facts.reducing and a.costs[name] * (len(found) - 1) > MAX_REPEATS:
            return f"its costly values would be computed {len(found)} times, once for each pass over a row"
    return None


def _rule_nesting(facts: KernelFacts, a: Group, b: Group, sites: list[Site]) -> str | None:
    for site in sites:
        if site.reducing and site.binders and hint_points(site) > 1 << 12:
            return "its reduction would run inside another one"
    return None


def hint_points(site: Site) -> int:
    """About how many points a load is evaluated at, bound axes included."""
    total = 1
    for axis in site.binders:
        total *= hint(axis.extent)
    return total * site.elements


RULES: tuple[Rule, ...] = (_rule_recompute, _rule_repeats, _rule_nesting, reductions_stay_single)


def _horizontal(state: Fusion, facts: KernelFacts, launches: bool, room: Headroom) -> None:
    """Kernels over the same axes that read a common buffer at the same place and do not depend on one another. The later one's results
    are there from the first on, for which there must be room.
    """
    size = {b.name: nbytes_hint(b) for b in state.program.buffers}
    by_space: dict[tuple[object, ...], list[int]] = {}
    for position in sorted(state.groups):
        group = state.groups[position]
        if not group.scanned:
            by_space.setdefault(group.space, []).append(position)
    for positions in by_space.values():
        chosen: list[int] = []
        for position in positions:
            nbytes = sum(size[n] for n in state.groups[position].stores)
            near = [c for c in reversed(chosen[-4:]) if c >= room.earliest(position, nbytes)]
            partner = next((c for c in near if _side_by_side(state, facts, c, position, launches)), None)
            if partner is None:
                chosen.append(position)
            else:
                room.take(partner, position, nbytes)


def _side_by_side(state: Fusion, facts: KernelFacts, first: int, second: int, launches: bool) -> bool:
    a, b = state.groups[first], state.groups[second]
    shared = any(2 * facts.sizes[n] >= a.points for n in a.loads & b.loads) or (launches and a.points <= MAX_SMALL)
    if not shared or len(a.loads | b.loads) + len(a.stores | b.stores) > MAX_BUFFERS // 2:
        return False
    apart = launches and not (a.overwrites & (b.loads | b.stores) or b.overwrites & (a.loads | a.stores))
    if (not apart and (a.overwrites or b.overwrites)) or {state.owner[g] for g in state.after[first]} & {second}:
        return False
    if _path_between(state, first, second) or _path_between(state, second, first):
        return False
    merged = ordered(facts, a.beside(b))
    if isinstance(merged, str):
        return False
    _union(state, second, first, merged)
    return True
