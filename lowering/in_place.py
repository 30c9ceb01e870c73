"""Inputs that the program changes are changed where they lie: a cache into which one row is written is neither copied out nor back.

Functional graphs say `new = copy of cache; new[row] = value; …; cache[:] = new`. Where nothing reads the old cache after the first change,
`new` may be the cache itself.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering import index as ix
from precast.lowering.effects import map_views, reads, writes
from precast.lowering.emit import without_unused_buffers
from precast.lowering.ir import Kernel, Load, Program, Step, Store, Value, View
from precast.lowering.symbolic import same
from precast.lowering.transform import map_kernel


def write_in_place(program: Program) -> Program:
    """The program without such copies."""
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    written = {n for s in program.steps for n in writes(s)}
    for name in program.inputs:
        if isinstance(name, str) and name in written:
            program = _without_copies(program, name, outputs)
    return without_unused_buffers(program)


def _without_copies(program: Program, name: str, outputs: set[str]) -> Program:
    """The program whose changes of a copy of input `name`, which end in that input, are made in it at once."""
    steps = program.steps
    back = [n for n, s in enumerate(steps) if name in writes(s)]
    source = _copied(steps[back[0]], name, program) if len(back) == 1 else None
    if source is None or source in outputs or source in program.inputs or source in {c.buffer for c in program.constants}:
        return program
    made = [n for n, s in enumerate(steps) if source in writes(s)]
    if _copied(steps[made[0]], source, program) != name or made[-1] >= back[0] or len(made) < 2:
        return program
    if not all(isinstance(steps[n], Kernel) for n in made):
        return program
    old = [n for n, s in enumerate(steps) if name in reads(s) and n != made[0]]
    if any(made[1] <= n < back[0] for n in old):
        return program
    kept = [s for n, s in enumerate(steps) if n not in (made[0], back[0])]
    return replace(program, steps=tuple(_renamed(s, source, name) for s in kept))


def _copied(step: Step, target: str, program: Program) -> str | None:
    """The buffer that the step copies whole, element by element, into `target`, where both lie alike and it does nothing else."""
    if not isinstance(step, Kernel) or len(step.stores) != 1 or step.stores[0].buffer != target:
        return None
    (store,) = step.stores
    value = store.value
    plain = store.mode == "set" and not store.gathers and store.mask is None and store.axes is None
    if not plain or not isinstance(value, Load) or value.gathers or value.mask is not None or value.index != store.index:
        return None
    a, b = program.buffer(target), program.buffer(value.buffer)
    alike = a.dtype is b.dtype and a.size == b.size and a.stride == b.stride == ix.contiguous_strides(a.size)
    return b.name if alike and same(ix.numel(x.extent for x in step.axes), ix.numel(a.size)) else None


def _renamed(step: Step, old: str, new: str) -> Step:
    if old not in reads(step) and old not in writes(step):
        return step

    def load(value: Value) -> Value:
        if isinstance(value, Load) and value.buffer == old:
            return Load(new, value.index, value.dtype, value.gathers, value.mask)
        return value

    def store(s: Store) -> Store:
        return replace(s, buffer=new) if s.buffer == old else s

    def view(v: View) -> View:
        return replace(v, buffer=new) if v.buffer == old else v

    if isinstance(step, Kernel):
        return map_kernel(step, load, store)
    return map_views(step, view)
