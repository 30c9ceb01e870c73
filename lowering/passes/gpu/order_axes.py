"""Reduced axes in the order of memory: neighbouring lanes of a program then read neighbouring elements.

A group norm's reduction runs over the channels of a group, then over the pixels, as the graph has them. Where the image is laid out
channels-last, the channels are the neighbours: the reduction runs over the pixels first, and what a kernel stores for each point of a row
does so with it.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.analysis.effects import store_roots
from precast.lowering.analysis.rewrite_values import replace_values
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Kernel, Load, Program, Reduce, Value, walk
from precast.lowering.ir.scalars import ReduceOp
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import Mapping_, Rewriter, shared_axis

Order = tuple[int, ...]
"""Positions of axes in today's order, outermost first."""


def reduced_axes_in_memory_order(program: Program) -> Program:
    """The program whose reductions run along memory innermost. Places of extremes, which count points in order, stay as they are."""
    return replace(program, steps=tuple(_ordered(s) if isinstance(s, Kernel) else s for s in program.steps))


def _ordered(kernel: Kernel) -> Kernel:
    orders: dict[tuple[object, ...], Order] = {}
    done: set[Value] = set()
    while True:
        values = walk(*(r for s in kernel.stores for r in store_roots(s)))
        found = next((v for v in values if isinstance(v, Reduce) and v not in done), None)
        if found is None:
            return _rows_ordered(kernel, orders) if orders else kernel
        order = _order(found)
        if order is None:
            done.add(found)
            continue
        orders[tuple(a.extent for a in found.axes)] = order
        moved = Reduce(found.op, found.value, tuple(found.axes[n] for n in order), found.dtype)
        done.add(moved)
        kernel = replace_values(kernel, {found: moved})


def _order(value: Reduce) -> Order | None:
    """The order of the axes by the strides of what is read most, largest first; None where that is today's."""
    if len(value.axes) < 2 or value.op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX):
        return None
    symbols = tuple(a.symbol for a in value.axes)
    votes: dict[Order, int] = {}
    for load in walk(value.value):
        found = ix.coefficients(load.index, symbols) if isinstance(load, Load) and not load.gathers else None
        if isinstance(load, Load) and found is not None and all(found[1]):
            strides = [abs(hint(n)) for n in found[1]]
            order = tuple(sorted(range(len(strides)), key=lambda n: -strides[n]))
            votes[order] = votes.get(order, 0) + load.dtype.itemsize
    if not votes:
        return None
    order = max(votes, key=lambda o: votes[o])
    return None if order == tuple(range(len(symbols))) else order


def _rows_ordered(kernel: Kernel, orders: dict[tuple[object, ...], Order]) -> Kernel:
    """The kernel with its innermost axes in the order of the reductions over as many points, so that rows stay in registers."""
    for size, order in orders.items():
        count = len(size)
        inner = kernel.axes[-count:]
        whole = all(s.axes is None or not set(inner) & set(s.axes) or set(inner) <= set(s.axes) for s in kernel.stores)
        if tuple(a.extent for a in inner) == size and whole and len(kernel.axes) > count:
            return _renamed(kernel, (*kernel.axes[:-count], *(inner[n] for n in order)))
    return kernel


def _renamed(kernel: Kernel, axes: tuple[Axis, ...]) -> Kernel:
    """The kernel over its axes in another order."""
    names = ix.symbols(len(axes))
    final = {a: shared_axis(s, a.extent) for a, s in zip(axes, names, strict=True)}
    items: Mapping_ = tuple((a.symbol, final[a].symbol) for a in kernel.axes)
    rewriter = Rewriter(tuple(final.values()), {})
    stores = tuple(
        rewriter.store(s, rewriter.env(items), None if s.axes is None else tuple(final[a] for a in axes if a in s.axes))
        for s in kernel.stores
    )
    return replace(kernel, axes=tuple(final.values()), stores=stores)


__all__ = ["reduced_axes_in_memory_order"]
