"""Relayout of one buffer: other strides, or a place inside another buffer. All accesses to it are rewritten, or none."""

from __future__ import annotations

from dataclasses import dataclass, replace

import sympy

from precast.lowering.analysis.effects import map_views, reads, store_roots, views, writes
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Kernel, Load, Output, Program, Size, Step, Store, Value, View, walk
from precast.lowering.ir.scalars import DType
from precast.lowering.passes.layout.channels_last import dimensions, extents_in


@dataclass(frozen=True)
class Move:
    """Element `i` of the contiguous shape `size` of buffer `name` goes to `offset + sum(stride[d] * i[d])` of buffer `to`."""

    name: str
    size: tuple[Size, ...]
    stride: tuple[Size, ...]
    to: str
    offset: Size = 0

    def place(self, index: sympy.Expr, mask: Value | None, extents: ix.Extents) -> sympy.Expr | None:
        """The new index of the element at a flat index; None where the index cannot be traced to the dimensions."""
        plain = Buffer(self.name, DType.F32, self.size, ix.contiguous_strides(self.size))
        where = dimensions(plain, index, mask, extents)
        if where is None:
            return None
        whole = ix.affine(self.offset, tuple(zip(self.stride, (where[d] for d in ix.symbols(len(self.size))), strict=True)))
        found: sympy.Expr = ix.simplify(whole, extents)  # what is apart in `where` may be one axis of the kernel
        return found

    def view(self, view: View) -> View | None:
        """The view of the same elements after the move; None where they form no strided view any more."""
        if view.buffer != self.name:
            return view
        dims = ix.symbols(len(view.size))
        extents = tuple(zip(dims, view.size, strict=True))
        at = ix.affine(view.offset, tuple((s, d if n != 1 else 0) for s, d, n in zip(view.stride, dims, view.size, strict=True)))
        place = None if view.dtype is not None else self.place(at, None, extents)
        found = None if place is None else ix.coefficients(place, dims)
        if found is None:
            return None
        offset, stride = found
        reach = [s * n for s, n in zip(stride, view.size, strict=True) if isinstance(s * n, int) and n != 1]
        whole = max(reach, default=1)  # libraries sort dimensions by stride: one of size 1 must not look like the innermost
        stride = tuple(whole if n == 1 else s for s, n in zip(stride, view.size, strict=True))
        return replace(view, buffer=self.to, stride=stride, offset=offset)


def moved(program: Program, move: Move, *, outputs: bool = False) -> Program | None:
    """The program after the move; None where an access does not allow it. `outputs`: results may be moved, too.

    The caller changes the declarations of buffers.
    """
    fixed = {i for i in program.inputs if isinstance(i, str)} | {c.buffer for c in program.constants} | set(program.persistent)
    results = {o.view.buffer for o in program.outputs if o.view is not None}
    if move.name in fixed or (move.name in results and not outputs):
        return None
    steps: list[Step] = []
    for step in program.steps:
        new = _moved_step(step, move) if move.name in (*reads(step), *writes(step)) else step
        if new is None:
            return None
        steps.append(new)
    found: list[Output] = []
    for output in program.outputs:
        view = output.view if output.view is None else move.view(output.view)
        if output.view is not None and view is None:
            return None
        found.append(replace(output, view=view))
    return replace(program, steps=tuple(steps), outputs=tuple(found))


def _moved_step(step: Step, move: Move) -> Step | None:
    if isinstance(step, Kernel):
        return _moved_kernel(step, move)
    if move.name in writes(step) and move.to != move.name:
        return None
    if any(move.view(v) is None for v in views(step)):
        return None
    return map_views(step, lambda v: move.view(v) or v)


def _moved_kernel(kernel: Kernel, move: Move) -> Kernel | None:
    extents = extents_in(kernel)

    def place(access: Load | Store) -> sympy.Expr | None:
        return move.place(access.index, access.mask, (*extents, *((g.symbol, g.size) for g in access.gathers)))

    accesses: list[Load | Store] = [v for v in walk(*(r for s in kernel.stores for r in store_roots(s))) if isinstance(v, Load)]
    if any(a.buffer == move.name and place(a) is None for a in (*accesses, *kernel.stores)):
        return None

    def load(value: Value) -> Value:
        if not isinstance(value, Load) or value.buffer != move.name:
            return value
        index = place(value)
        assert index is not None
        return Load(move.to, index, value.dtype, value.gathers, value.mask)

    def store(s: Store) -> Store:
        if s.buffer != move.name:
            return s
        index = place(s)
        assert index is not None
        return replace(s, buffer=move.to, index=index)

    return map_kernel(kernel, load, store)
