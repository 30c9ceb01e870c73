"""Which step must come before which, and an order of the steps that keeps few bytes alive."""

from __future__ import annotations

import heapq
from dataclasses import replace

from precast.lowering.analysis.effects import is_custom, may_draw, reads, remembered, step_symbols, symbols_bound, symbols_in, writes
from precast.lowering.ir.nodes import Buffer, Extern, Program, Step
from precast.lowering.ir.sizes import hint, is_unbacked


def nbytes_hint(buffer: Buffer) -> int:
    """About how many bytes the buffer takes."""
    total = buffer.dtype.itemsize
    for s in buffer.size:
        total *= hint(s)
    return total


def dependencies(program: Program) -> list[set[int]]:
    """For each step the earlier steps that must stay before it: producers of what it reads, and readers and writers of what it
    overwrites. Operators that are not torch's own keep their order: they may have effects that their schemas do not tell; so do those that
    draw random numbers. Data-dependent sizes count as written by the step that binds (or checks) them.
    """
    last: dict[str, int] = {}
    last_write: dict[object, int] = {}
    readers: dict[object, list[int]] = {}
    before: list[set[int]] = []
    allocated = {b.name: found for b in program.buffers if (found := _unbacked_in_buffer(b))}
    for position, step in enumerate(program.steps):
        needed: set[int] = set()
        read: tuple[object, ...] = (*reads(step), *_unbacked_in_step(step), *(s for n in writes(step) for s in allocated.get(n, ())))
        written: tuple[object, ...] = (*writes(step), *symbols_bound(step))
        needed.update(last_write[name] for name in read if name in last_write)
        for name in written:
            needed.update(readers.get(name, ()))
            if name in last_write:
                needed.add(last_write[name])
        for name in read:
            readers.setdefault(name, []).append(position)
        for name in written:
            last_write[name] = position
            readers[name] = []
        for kind in _ordered_kinds(step):
            needed |= {last[kind]} if kind in last else set()
            last[kind] = position
        needed.discard(position)
        before.append(needed)
    return before


def _ordered_kinds(step: Step) -> tuple[str, ...]:
    """Kinds of operators of which each comes after the one before."""
    if not isinstance(step, Extern):
        return ()
    return (("custom",) if is_custom(step.op) else ()) + (("random",) if may_draw(step.op) else ())


@remembered
def _unbacked_in_buffer(buffer: Buffer) -> tuple[object, ...]:
    return tuple(s for s in symbols_in((buffer.size, buffer.stride)) if is_unbacked(s))


@remembered
def _unbacked_in_step(step: Step) -> tuple[object, ...]:
    return tuple(s for s in step_symbols(step) if is_unbacked(s))


def order_steps(program: Program) -> Program:
    """Topological order by a greedy rule: of the ready steps, the one that frees most (or allocates least) goes first; ties keep the
    graph's order.
    """
    steps = program.steps
    before = dependencies(program)
    after: list[list[int]] = [[] for _ in steps]
    for position, needed in enumerate(before):
        for p in needed:
            after[p].append(position)
    size = {b.name: nbytes_hint(b) for b in program.buffers}
    fixed = (
        {i for i in program.inputs if isinstance(i, str)}
        | {o.view.buffer for o in program.outputs if o.view is not None}
        | set(program.persistent)
    )
    fixed |= {c.buffer for c in program.constants}
    read = [reads(s) for s in steps]
    written = [writes(s) for s in steps]
    users: dict[str, set[int]] = {}
    for position in range(len(steps)):
        for name in (*read[position], *written[position]):
            users.setdefault(name, set()).add(position)
    born: set[str] = set()

    def growth(position: int) -> int:
        fresh = sum(size[n] for n in written[position] if n not in fixed and n not in born)
        freed = sum(size[n] for n in read[position] if n not in fixed and users[n] == {position})
        return fresh - freed

    waiting = [len(n) for n in before]
    ready = [(min(growth(p), 0) and growth(p), p) for p in range(len(steps)) if not waiting[p]]
    heapq.heapify(ready)
    result: list[Step] = []
    while ready:
        stale, position = heapq.heappop(ready)
        current = growth(position)
        current = current if current < 0 else 0
        if current != stale and ready and (current, position) > ready[0]:
            heapq.heappush(ready, (current, position))
            continue
        result.append(steps[position])
        for name in (*read[position], *written[position]):
            users[name].discard(position)
            born.add(name)
        for follower in after[position]:
            waiting[follower] -= 1
            if not waiting[follower]:
                change = growth(follower)
                heapq.heappush(ready, (change if change < 0 else 0, follower))
    assert len(result) == len(steps), "the steps depend on one another in a circle"
    return replace(program, steps=tuple(result))
