"""An update of many tensors in place, element by element, is one kernel that reads and writes each of them once (an optimiser's step).

Functional graphs say `new = f(old, gradient); parameter[:] = g(new); old[:] = new`: here nothing stands between reading an element and
writing it, since the inputs do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.rewrite_values import map_values
from precast.lowering.ir.nodes import Axis, Cast, Gather, Index, Kernel, Load, Program, Reduce, Scan, Store, Value, walk
from precast.lowering.ir.sympy_calls import same, symbols_of


def one_update_kernel(program: Program) -> Program:
    """The program with all of its kernels in one; the program itself where they are no such update."""
    inputs = {name for name in program.inputs if isinstance(name, str)}
    first = next((s for s in program.steps if isinstance(s, Kernel) and len(s.axes) == 1), None)
    if first is None or program.outputs or program.prepare:
        return program
    (axis,) = first.axes
    scalars = {b.name for b in program.buffers if not b.size}
    now: dict[str, Value] = {}  # what a buffer holds at the element, where it was written
    origins: dict[str, None] = {}
    for step in program.steps:
        if not isinstance(step, Kernel) or len(step.axes) > 1 or any(not same(a.extent, axis.extent) for a in step.axes):
            return program
        made = {}
        for store in step.stores:
            value = None if not _plain(store, step, inputs) else _at(store.value, axis, step, now, scalars)
            if value is None:
                return program
            made[store.buffer] = value
        now |= made
        origins |= dict.fromkeys(step.origins)
    stores = tuple(Store(name, axis.symbol, value) for name, value in now.items() if name in inputs)
    if not stores or not _reads_before_it_writes(stores):
        return program
    kernel = replace(first, stores=stores, origins=tuple(origins))
    return without_unused_buffers(replace(program, steps=(kernel,)))


def _plain(store: Store, kernel: Kernel, inputs: set[str]) -> bool:
    """Whether it sets the element of the kernel's one axis, or a scalar that is no input."""
    if not kernel.axes:
        where = store.index == 0 and store.buffer not in inputs
    else:
        where = store.index == kernel.axes[0].symbol and store.axes in (None, kernel.axes)
    return where and store.mode == "set" and not store.gathers and store.mask is None


def _at(root: Value, axis: Axis, kernel: Kernel, now: Mapping[str, Value], scalars: set[str]) -> Value | None:
    """The value at the element of `axis`, with what was written before in place of loads; None where it reads anything else."""
    own = kernel.axes[0].symbol if kernel.axes else None
    for value in walk(root):
        if isinstance(value, Reduce | Scan | Gather):
            return None
        if isinstance(value, Load):
            if value.index != (0 if value.buffer in scalars else own) or value.gathers or value.mask is not None:
                return None
        if isinstance(value, Index) and own in symbols_of(value.expr):
            return None

    def moved(value: Value) -> Value:
        if not isinstance(value, Load):
            return value
        known = now.get(value.buffer)
        if known is None:
            return value if value.buffer in scalars else Load(value.buffer, axis.symbol, value.dtype)
        return known if known.dtype is value.dtype else Cast(known, value.dtype)

    return map_values((root,), moved)[root]


def _reads_before_it_writes(stores: tuple[Store, ...]) -> bool:
    """Whether what a store overwrites is read for that store or an earlier one, if at all."""
    seen: set[str] = set()
    written: set[str] = set()
    for store in stores:
        read = {value.buffer for value in walk(store.value) if isinstance(value, Load)}
        if (read - seen) & written:
            return False
        seen |= read
        written.add(store.buffer)
    return True


__all__ = ["one_update_kernel"]
