"""Inputs that the program changes are changed where they lie: a cache into which one row is written is neither copied out nor back.

Functional graphs say `new = copy of cache; new[row] = value; …; cache[:] = new`. Where nothing reads the old cache after the first change,
`new` may be the cache itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import map_views, reads, writes
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Kernel, Load, Program, Step, Store, Value, View
from precast.lowering.ir.sympy_calls import same


def write_in_place(program: Program) -> Program:
    """The program without such copies."""
    writing, reading = _places(program.steps, writes), _places(program.steps, reads)
    never = {o.view.buffer for o in program.outputs if o.view is not None} | {i for i in program.inputs if isinstance(i, str)}
    never |= {c.buffer for c in program.constants}
    instead: dict[str, str] = {}
    copies: set[int] = set()
    for name in program.inputs:
        found = _changed(program, name, writing, reading) if isinstance(name, str) and name in writing else None
        if found is not None and found[0] not in never:
            instead[found[0]] = str(name)
            copies |= {*found[1:]}
    kept = (s for n, s in enumerate(program.steps) if n not in copies)
    return without_unused_buffers(replace(program, steps=tuple(_renamed(s, instead) for s in kept)))


Places = dict[str, list[int]]


def _places(steps: Sequence[Step], names: Callable[[Step], tuple[str, ...]]) -> Places:
    """The numbers of the steps that read, or write, each buffer."""
    places: Places = {}
    for number, step in enumerate(steps):
        for name in names(step):
            places.setdefault(name, []).append(number)
    return places


def _changed(program: Program, name: str, writing: Places, reading: Places) -> tuple[str, int, int] | None:
    """The buffer in which input `name` is changed, and the numbers of the steps that copy the input out and back."""
    steps, back = program.steps, writing[name]
    source = _copied(steps[back[0]], name, program) if len(back) == 1 else None
    made = [] if source is None else writing.get(source, [])
    if source is None or len(made) < 2 or made[-1] >= back[0] or _copied(steps[made[0]], source, program) != name:
        return None
    if not all(isinstance(steps[n], Kernel) for n in made) or any(made[1] <= n < back[0] for n in reading.get(name, [])):
        return None
    return source, made[0], back[0]


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


def _renamed(step: Step, instead: Mapping[str, str]) -> Step:
    if not any(name in instead for name in (*reads(step), *writes(step))):
        return step

    def load(value: Value) -> Value:
        if isinstance(value, Load) and value.buffer in instead:
            return Load(instead[value.buffer], value.index, value.dtype, value.gathers, value.mask)
        return value

    def store(s: Store) -> Store:
        return replace(s, buffer=instead[s.buffer]) if s.buffer in instead else s

    def view(v: View) -> View:
        return replace(v, buffer=instead[v.buffer]) if v.buffer in instead else v

    if isinstance(step, Kernel):
        return map_kernel(step, load, store)
    return map_views(step, view)
