"""Writes the fused kernels: each group becomes one kernel whose stores hold the members' values, one put into the other."""

from __future__ import annotations

import heapq
from dataclasses import replace

import sympy

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.dependencies import dependencies
from precast.lowering.analysis.kernel_facts import KernelFacts
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Kernel, Program, Step, Store
from precast.lowering.ir.substitution import Definition, Rewriter, Uninvertible, shared_axis
from precast.lowering.ir.sympy_calls import renamed
from precast.lowering.passes.fusion.fusion_groups import Group, Placed


def emit(
    program: Program, facts: KernelFacts, groups: dict[int, Group], owner: list[int], notes: tuple[str, ...], *, again: bool
) -> Program:
    """The program with one kernel per group, in an order that keeps all dependencies. `again`: its kernels came from this
    function before, so that a group of one kernel is left as it is.
    """
    remarks = dict.fromkeys((*program.notes, *notes))
    steps: list[Step] = []
    for number in _group_order(program, owner):
        if number not in groups:
            steps.append(program.steps[number])
            continue
        try:
            kernel = fused_kernel(program, facts, groups[number], again)
        except Uninvertible as reason:
            remarks[f"not fused: {groups[number].name} stays in {len(groups[number].members)} kernels: {reason}"] = None
            steps.extend(program.steps[m] for m in sorted(groups[number].members))
            continue
        if kernel is not None:
            steps.append(kernel)
    return without_unused_buffers(replace(program, steps=tuple(steps), notes=tuple(remarks)))


def _group_order(program: Program, owner: list[int]) -> list[int]:
    """The groups where their last members were, and those that are needed earlier, since neighbours were put together, in front of the
    first that needs them.
    """
    last: dict[int, int] = {}
    for position, group in enumerate(owner):
        last[group] = max(last.get(group, -1), position)
    before: dict[int, set[int]] = {g: set() for g in last}
    after: dict[int, set[int]] = {g: set() for g in last}
    for position, needed in enumerate(dependencies(program)):
        for p in needed:
            if owner[p] != owner[position]:
                before[owner[position]].add(owner[p])
                after[owner[p]].add(owner[position])
    due = dict(last)
    for group in sorted(due, key=lambda g: due[g]):  # what is due first tells those in front of it
        stack = [group]
        while stack:
            follower = stack.pop()
            for earlier in before[follower]:
                if due[earlier] > due[group]:
                    due[earlier] = due[group]
                    stack.append(earlier)
    waiting = {g: len(b) for g, b in before.items()}
    ready = [(due[g], last[g], g) for g, n in waiting.items() if not n]
    heapq.heapify(ready)
    order = []
    while ready:
        *_, group = heapq.heappop(ready)
        order.append(group)
        for follower in after[group]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (due[follower], last[follower], follower))
    assert len(order) == len(last), "fusion made a circle of steps"
    return order


def fused_kernel(program: Program, facts: KernelFacts, group: Group, again: bool) -> Kernel | None:
    """The group's kernel under canonical names; None when nothing of it is needed."""
    canonical = ix.symbols(len(group.axes))
    if len(group.members) == 1 and _is_final(program, facts, group, again):
        (only,) = (program.steps[m] for m in group.members)
        assert isinstance(only, Kernel)
        return only
    names = {a.symbol: s for a, s in zip(group.axes, canonical, strict=True)}
    axes = tuple(shared_axis(s, a.extent) for a, s in zip(group.axes, canonical, strict=True))
    members = sorted(group.members)
    definitions: dict[str, Definition] = {}
    kernels: list[tuple[int, Kernel]] = []
    for member in members:
        step = program.steps[member]
        assert isinstance(step, Kernel)
        kernels.append((member, step))
        if len(members) > 1:
            definitions |= {s.buffer: facts.defined[s.buffer] for s in step.stores if s.buffer in facts.defined}
    rewriter = Rewriter(axes, definitions)
    stores: list[Store] = []
    for member, kernel in kernels:
        for store in kernel.stores:
            if facts.needed_outside(store.buffer, group.members) or store.buffer not in facts.defined:
                stores.append(_placed_store(rewriter, kernel, store, group.places[member], names, axes))
    if not stores:
        return None
    origins = tuple(dict.fromkeys(o for _, k in kernels for o in k.origins))
    return Kernel(group.name, axes, tuple(stores), origins)


def _is_final(program: Program, facts: KernelFacts, group: Group, again: bool) -> bool:
    """Whether the kernel came out of an earlier fusion and is as that left it: canonical names, no dead store."""
    (member,) = group.members
    kernel = program.steps[member]
    assert isinstance(kernel, Kernel)
    symbols = tuple(a.symbol for a in group.axes)
    named = again and symbols == tuple(a.symbol for a in kernel.axes) == ix.symbols(len(symbols))
    return named and all(facts.needed_outside(s.buffer, group.members) for s in kernel.stores)


def _placed_store(
    rewriter: Rewriter, kernel: Kernel, store: Store, placed: Placed, names: dict[sympy.Symbol, sympy.Symbol], axes: tuple[Axis, ...]
) -> Store:
    own = kernel.axes if store.axes is None else store.axes
    mapping = tuple((s, renamed(e, names)) for s, e in placed.mapping)
    wanted = {a.symbol for a in own}
    used = frozenset().union(*(e.free_symbols for s, e in mapping if s in wanted)) if wanted else frozenset()
    over = tuple(a for a in axes if a.symbol in used)
    return rewriter.store(store, rewriter.env(mapping), None if len(over) == len(axes) else over)
