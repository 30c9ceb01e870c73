"""Horizontal fusion: small independent pointwise kernels become one, since on a GPU a launch costs more than such a kernel's work.

A network whose norms are folded into its weights at each call has a hundred such kernels. The members keep axes of their own; the renderer
gives each of them some of the launch's programs. Kernels that `small_kernels_first` has delayed stay where they are, and none moves so
far forward that its result, which then is in memory for longer, raises the peak beyond the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from precast.lowering.analysis.dependencies import dependencies, nbytes_hint
from precast.lowering.analysis.effects import reads, store_roots, writes
from precast.lowering.analysis.headroom import Headroom
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Kernel, Program, Reduce, Scan, Step, Store, walk
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import Rewriter, shared_axis

MAX_MEMBERS = 48
MAX_BUFFERS = 200
"""Parameters of a kernel have 4 KiB."""
NEAR = 8
"""How many steps earlier a kernel may run that depends on other kernels: its result occupies memory meanwhile."""


@dataclass
class _Batch:
    position: int
    members: list[int] = field(default_factory=list)
    buffers: set[str] = field(default_factory=set)
    nbytes: int = 0


def gpu_batches(program: Program, traits: Traits, growth: float) -> Program:
    """The program with such kernels merged at the position of the first of them. Its steps must be in order. `growth`: the share of the
    peak of memory that this may add to it.
    """
    room = Headroom(program, growth)
    before = dependencies(program)
    place = list(range(len(program.steps)))
    size = {b.name: nbytes_hint(b) for b in program.buffers}
    batches: list[_Batch] = []
    prepares: list[bool] = []  # of each step: is it a kernel of inputs alone, or of such kernels' results?
    since = 0  # where the latest of such steps began that have no other between them
    for position, step in enumerate(program.steps):
        prepares.append(isinstance(step, Kernel) and all(prepares[p] for p in before[position]))
        since = since if prepares[-1] else position + 1
        if not isinstance(step, Kernel) or not _suits(step, traits):
            continue
        needed = max((place[p] for p in before[position]), default=-1)
        earliest = since if prepares[-1] and _put_off(step, size, traits) else 0
        nbytes = sum(size[b] for b in writes(step))
        least = max(needed + 1, earliest, room.earliest(position, nbytes))
        fitting = (b for b in reversed(batches) if least <= b.position and _fits(b, step, position, needed, size, traits))
        batch = next(fitting, None)
        if batch is None:
            batch = _Batch(position)
            batches.append(batch)
        batch.members.append(position)
        batch.buffers |= {*reads(step), *writes(step)}
        batch.nbytes += nbytes
        room.take(batch.position, position, nbytes)
        place[position] = batch.position
    merged = {b.position: _merged([program.steps[m] for m in b.members]) for b in batches if len(b.members) > 1}
    gone = {m for b in batches if len(b.members) > 1 for m in b.members[1:]}
    return replace(program, steps=tuple(merged.get(n, step) for n, step in enumerate(program.steps) if n not in gone))


def _put_off(kernel: Kernel, size: Mapping[str, int], traits: Traits) -> bool:
    """Whether `small_kernels_first` delayed the kernel because its result is large."""
    small = prod(hint(a.extent) for a in kernel.axes) <= traits.small_points
    return small and sum(size[n] for n in writes(kernel)) >= traits.large_bytes


def _suits(kernel: Kernel, traits: Traits) -> bool:
    values = walk(*(r for s in kernel.stores for r in store_roots(s)))
    small = prod(hint(a.extent) for a in kernel.axes) <= traits.batch_points
    return small and all(s.mode == "set" for s in kernel.stores) and not any(isinstance(v, Reduce | Scan) for v in values)


def _fits(batch: _Batch, kernel: Kernel, position: int, needed: int, size: dict[str, int], traits: Traits) -> bool:
    if len(batch.members) >= MAX_MEMBERS or (needed >= 0 and position - batch.position > NEAR):
        return False
    if len(batch.buffers | {*reads(kernel), *writes(kernel)}) > MAX_BUFFERS:
        return False
    return batch.nbytes + sum(size[b] for b in writes(kernel)) <= traits.batch_bytes


def _merged(members: Sequence[Step]) -> Kernel:
    """One kernel whose stores run over their own member's axes."""
    kernels = [m for m in members if isinstance(m, Kernel)]
    names = iter(ix.symbols(sum(len(k.axes) for k in kernels)))
    groups = [tuple(shared_axis(next(names), a.extent) for a in k.axes) for k in kernels]
    axes = tuple(a for group in groups for a in group)
    rewriter = Rewriter(axes, {})
    stores: list[Store] = []
    for kernel, own in zip(kernels, groups, strict=True):
        by_old = dict(zip(kernel.axes, own, strict=True))
        env = rewriter.env(tuple((old.symbol, new.symbol) for old, new in by_old.items()))
        for store in kernel.stores:
            over = tuple(by_old[a] for a in kernel.axes if store.axes is None or a in store.axes)
            stores.append(rewriter.store(store, env, over))
    origins = tuple(dict.fromkeys(o for k in kernels for o in k.origins))
    return Kernel(kernels[0].name, axes, tuple(stores), origins)
