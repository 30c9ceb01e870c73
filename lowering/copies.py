"""Copies that nobody needs: a kernel that only moves elements is skipped by readers that can read the source where it lies.

An identity copy disappears. A copy with strides (a transpose before a matrix product) disappears where its reader is a library
step that takes strided windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from precast.lowering import index as ix
from precast.lowering.constants import without_dead_steps
from precast.lowering.effects import map_views, writes
from precast.lowering.ir import Attention, Buffer, Gemm, Kernel, Load, Program, Step, View
from precast.lowering.substitution import coordinates, shared_axis
from precast.lowering.transform import rename_buffers


@dataclass(frozen=True)
class Copy:
    """`target[store]` is `source[load]` at every point of the kernel's axes."""

    kernel: Kernel
    target: str
    source: Load


def forward_copies(program: Program) -> Program:
    """The program without the copies that its readers do not need."""
    by_name = {b.name: b for b in program.buffers}
    count: dict[str, int] = {}
    for step in program.steps:
        for name in writes(step):
            count[name] = count.get(name, 0) + 1
    inputs = {i for i in program.inputs if isinstance(i, str)}
    mutated = {n for n, c in count.items() if c > 1} | (inputs & count.keys())
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    copies = {c.target: c for s in program.steps if isinstance(s, Kernel) for c in [_copy(s, by_name, mutated)] if c is not None}
    names: dict[str, str] = {}
    for name, copy in copies.items():
        source = copy.source.buffer
        if name not in outputs and copy.source.index == copy.kernel.stores[0].index and _same_room(by_name[name], by_name[source]):
            names[name] = names.get(source, source)
    program = rename_buffers(program, names)
    strided = {n: c for n, c in copies.items() if n not in names and c.source.buffer not in names}
    if strided:
        steps = tuple(_direct(s, strided, by_name) for s in program.steps)
        program = replace(program, steps=steps)
    return without_dead_steps(program, set()) if names or strided else program


def _copy(kernel: Kernel, by_name: dict[str, Buffer], mutated: set[str]) -> Copy | None:
    if len(kernel.stores) != 1:
        return None
    store = kernel.stores[0]
    value = store.value
    plain = store.mode == "set" and not store.gathers and store.mask is None and store.axes is None
    if not plain or not isinstance(value, Load) or value.gathers or value.mask is not None or {value.buffer, store.buffer} & mutated:
        return None
    if by_name[value.buffer].dtype is not by_name[store.buffer].dtype:
        return None
    return Copy(kernel, store.buffer, value)


def _same_room(a: Buffer, b: Buffer) -> bool:
    """Whether both buffers span the same elements, so that an equal index means the same place."""
    return a.dtype is b.dtype and sympy.expand(ix.numel(a.size) - ix.numel(b.size)) == 0


def _direct(step: Step, copies: dict[str, Copy], by_name: dict[str, Buffer]) -> Step:
    if not isinstance(step, Gemm | Attention):
        return step
    return map_views(step, lambda v: through(v, copies[v.buffer]) if v.buffer in copies else v)


def through(view: View, copy: Copy) -> View:
    """The same elements as a window into the copy's source; the very view when they do not form one."""
    if view.dtype is not None:
        return view
    dims = ix.symbols(len(view.size))
    extents = tuple(zip(dims, view.size, strict=True))
    at = ix.affine(view.offset, tuple(zip(view.stride, dims, strict=True)))
    store = copy.kernel.stores[0]
    axes = tuple(shared_axis(a.symbol, a.extent) for a in copy.kernel.axes)
    where = coordinates(store.index, axes, at, extents)
    if where is None:
        return view
    found = ix.coefficients(ix.substitute(copy.source.index, where, extents), dims)
    if found is None:
        return view
    offset, strides = found
    # a library wants one of the two inner dimensions consecutive; a size of 1 has no stride
    inner = [s for s, n in zip(strides[-2:], view.size[-2:], strict=True) if n != 1]
    if len(view.size) >= 2 and 1 not in inner and inner:
        return view
    return View(copy.source.buffer, view.size, strides, offset)
