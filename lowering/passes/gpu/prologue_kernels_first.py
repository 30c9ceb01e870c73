"""Prologue kernels first: small kernels that depend on the program's inputs only are moved to its front, where code generation makes one
launch of neighbours.

They fold norms into weights and change layouts of weights, a hundred of them in an image network; each alone would cost a launch. Of
those with large results only the ones that are needed soonest run first; the others are delayed, in groups of one launch each, until the
first of a group is needed, since an image network's largest activations, its first ones, would otherwise be in memory at the same time.
Where even so the peak would grow beyond the bound, nothing moves.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import reads, step_symbols, writes
from precast.lowering.analysis.headroom import alive_bytes, most_alive
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Kernel, Program, Step
from precast.lowering.ir.sizes import hint, is_unbacked


def small_kernels_first(program: Program, traits: Traits, growth: float) -> Program:
    """The program with such kernels in front: first those that depend on inputs alone, then those that depend on them, and so on.
    `growth`: the share of the peak of memory that this may add to it.
    """
    most = most_alive(program, growth)
    group = traits.group_bytes
    while group >= traits.large_bytes:  # in smaller groups less is in memory before it is needed
        found = _in_front(program, replace(traits, group_bytes=group, first_bytes=min(group, traits.first_bytes)))
        if max(alive_bytes(found), default=0) <= most:
            return found
        group //= 4
    return program


def _in_front(program: Program, traits: Traits) -> Program:
    written = {w for s in program.steps for w in writes(s)}
    count: dict[str, int] = {}
    for step in program.steps:
        for name in writes(step):
            count[name] = count.get(name, 0) + 1
    level = {name: 0 for name in (*(i for i in program.inputs if isinstance(i, str)), *program.persistent) if name not in written}
    level |= {c.buffer: 0 for c in program.constants if c.buffer not in written}
    first: dict[int, list[Step]] = {}
    rest: list[Step] = []
    for step in program.steps:
        ready = _early(step, traits) and all(n in level for n in reads(step))
        if ready and all(count[n] == 1 and n not in program.inputs for n in writes(step)):
            depth = 1 + max((level[n] for n in reads(step)), default=0)
            level |= {n: depth for n in writes(step)}
            first.setdefault(depth, []).append(step)
        else:
            rest.append(step)
    early = [s for depth in sorted(first) for s in first[depth]]
    later = _made_later(program, early, rest, traits)
    moved = {id(s) for group in later.values() for s in group}
    kept = [s for s in early if id(s) not in moved]
    return replace(program, steps=(*kept, *(s for n, step in enumerate(rest) for s in (*later.get(n, ()), step))))


def _made_later(program: Program, early: list[Step], rest: list[Step], traits: Traits) -> dict[int, list[Step]]:
    """Groups of early steps whose large results are needed later, by the position in `rest` before which each group runs."""
    size = {b.name: nbytes_hint(b) for b in program.buffers}
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    needed = {n for s in early for n in reads(s)} | outputs | set(program.persistent)
    first_use: dict[str, int] = {}
    for position, step in enumerate(rest):
        for name in reads(step):
            first_use.setdefault(name, position)

    def nbytes(step: Step) -> int:
        return sum(size[n] for n in writes(step))

    large = [s for s in early if nbytes(s) >= traits.large_bytes and all(n not in needed and first_use.get(n, 0) for n in writes(s))]
    large.sort(key=lambda s: min(first_use[n] for n in writes(s)))
    groups: list[list[Step]] = [[]]
    room = traits.first_bytes
    for step in large:
        if nbytes(step) > room and (groups[-1] or len(groups) == 1):
            groups.append([])
            room = traits.group_bytes
        groups[-1].append(step)
        room -= nbytes(step)
    return {min(first_use[n] for n in writes(group[0])): group for group in groups[1:] if group}


def _early(step: Step, traits: Traits) -> bool:
    if not isinstance(step, Kernel) or not all(isinstance(a.extent, int) for a in step.axes):
        return False
    if any(is_unbacked(s) for s in step_symbols(step)):
        return False  # a number that an earlier step reads
    return hint(ix.numel(a.extent for a in step.axes)) <= traits.small_points
