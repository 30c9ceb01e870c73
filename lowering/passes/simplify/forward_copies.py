"""Copy forwarding: readers of a copy read its source instead, where they can, so that the copy is dead.

An identity copy disappears. A copy with strides (a transpose before a matrix product) disappears where its reader is a library
step that takes strided windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from precast.lowering.analysis.effects import map_views, writes
from precast.lowering.analysis.rewrite_values import rename_buffers
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Attention, Buffer, Gemm, Kernel, Load, Program, Step, Store, View
from precast.lowering.ir.substitution import coordinates, shared_axis
from precast.lowering.ir.sympy_calls import expand
from precast.lowering.passes.simplify.constant_fold import without_dead_steps


@dataclass(frozen=True)
class Copy:
    """`target[store]` is `source[load]` at every point of the kernel's axes."""

    kernel: Kernel
    store: Store
    source: Load

    @property
    def target(self) -> str:
        return self.store.buffer


def forward_copies(program: Program) -> Program:
    """The program without the copies that its readers do not need."""
    by_name = {b.name: b for b in program.buffers}
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    copies = {name: c for name, c in copies_of(program).items() if len(c.kernel.stores) == 1}
    names: dict[str, str] = {}
    for name, copy in copies.items():
        source = copy.source.buffer
        if name not in outputs and copy.source.index == copy.store.index and _same_room(by_name[name], by_name[source]):
            names[name] = names.get(source, source)
    program = rename_buffers(program, names)
    strided = {n: c for n, c in copies.items() if n not in names and c.source.buffer not in names}
    if strided:
        program = replace(program, steps=tuple(_direct(s, strided) for s in program.steps))
    return without_dead_steps(program, set()) if names or strided else program


def copies_of(program: Program) -> dict[str, Copy]:
    """The copies among the kernels' stores, by target. Neither source nor target is written anywhere else."""
    by_name = {b.name: b for b in program.buffers}
    count: dict[str, int] = {}
    for step in program.steps:
        for name in writes(step):
            count[name] = count.get(name, 0) + 1
    mutated = {n for n, c in count.items() if c > 1} | ({i for i in program.inputs if isinstance(i, str)} & count.keys())
    found: dict[str, Copy] = {}
    for step in program.steps:
        for store in step.stores if isinstance(step, Kernel) else ():
            value = store.value
            plain = store.mode == "set" and not store.gathers and store.mask is None and store.axes is None
            if (
                not plain
                or not isinstance(value, Load)
                or value.gathers
                or value.mask is not None
                or {value.buffer, store.buffer} & mutated
            ):
                continue
            if by_name[value.buffer].dtype is by_name[store.buffer].dtype:
                assert isinstance(step, Kernel)
                found[store.buffer] = Copy(step, store, value)
    return found


def _same_room(a: Buffer, b: Buffer) -> bool:
    """Whether both buffers have the same span of elements, so that equal indices mean the same positions."""
    return a.dtype is b.dtype and expand(ix.numel(a.size) - ix.numel(b.size)) == 0


def _direct(step: Step, copies: dict[str, Copy]) -> Step:
    if not isinstance(step, Gemm | Attention):
        return step
    return map_views(step, lambda v: through(v, copies[v.buffer]) if v.buffer in copies else v)


def through(view: View, copy: Copy) -> View:
    """The same elements as a view of the copy's source; unchanged where they form no strided view of it."""
    if view.dtype is not None:
        return view
    dims = ix.symbols(len(view.size))
    extents = tuple(zip(dims, view.size, strict=True))
    at = ix.affine(view.offset, tuple(zip(view.stride, dims, strict=True)))
    axes = tuple(shared_axis(a.symbol, a.extent) for a in copy.kernel.axes)
    where = coordinates(copy.store.index, axes, at, extents)
    if where is None:
        return view
    found = ix.coefficients(ix.substitute(copy.source.index, where, extents), dims)
    if found is None:
        return view
    offset, strides = found
    if not all(ix.is_nonnegative(n) for n in (offset, *strides)):
        return view  # a flip: no tensor of torch's walks backwards
    # a library wants one of the two inner dimensions consecutive; a size of 1 has no stride
    inner = [s for s, n in zip(strides[-2:], view.size[-2:], strict=True) if n != 1]
    if len(view.size) >= 2 and 1 not in inner and inner:
        return view
    return View(copy.source.buffer, view.size, strides, offset)
