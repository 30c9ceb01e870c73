"""What a kernel computes for an input that the program changes goes there at once: `new = f(old); …; old[:] = new` needs no `new`.

For graphs that update many tensors in place, element by element (the step of an optimiser): one kernel that reads and writes each once.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import loads, reads, store_roots, writes
from precast.lowering.ir.nodes import Kernel, Program, Reduce, Scan, Store, walk
from precast.lowering.passes.simplify.in_place import copied


def store_in_place(program: Program) -> Program:
    """The program without copies of what a kernel of plain loops made into the input that it was made from."""
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    never = outputs | {i for i in program.inputs if isinstance(i, str)} | {c.buffer for c in program.constants} | set(program.persistent)
    while (found := _found(program, never)) is not None:
        program = found
    return without_unused_buffers(program)


def _found(program: Program, never: set[str]) -> Program | None:
    """The program with one copy less."""
    steps = program.steps
    for last, step in enumerate(steps):
        target = step.stores[0].buffer if isinstance(step, Kernel) else ""
        source = copied(step, target, program) if target in program.inputs else None
        if source is None or source in never:
            continue
        makers = [n for n, s in enumerate(steps) if source in writes(s)]
        readers = [n for n, s in enumerate(steps) if source in reads(s)]
        if len(makers) != 1 or readers != [last] or makers[0] >= last:
            continue
        first, maker = makers[0], steps[makers[0]]
        between = any(target in (*reads(s), *writes(s)) for s in steps[first + 1 : last])
        if between or not isinstance(maker, Kernel) or not _may_store(maker, source, target):
            continue
        stores = tuple(replace(s, buffer=target) if s.buffer == source else s for s in maker.stores)
        changed = replace(maker, stores=stores, origins=tuple(dict.fromkeys((*maker.origins, *step.origins))))
        return replace(program, steps=(*steps[:first], changed, *steps[first + 1 : last], *steps[last + 1 :]))
    return None


def _may_store(kernel: Kernel, source: str, target: str) -> bool:
    """Whether the kernel may write `target` where it writes `source`: it reads each element of `target` only to make that very element."""
    (store,) = [s for s in kernel.stores if s.buffer == source]
    if not _plain(store) or target in writes(kernel):
        return False
    values = list(walk(*(root for s in kernel.stores for root in store_roots(s))))
    if any(isinstance(v, Reduce | Scan) for v in values):
        return False
    own = {id(v) for v in walk(store.value)}
    return all(
        load.index == store.index and load.mask is None and not load.gathers and id(load) in own
        for load in loads(kernel)
        if load.buffer == target
    )


def _plain(store: Store) -> bool:
    return store.mode == "set" and not store.gathers and store.mask is None and store.axes is None


__all__ = ["store_in_place"]
