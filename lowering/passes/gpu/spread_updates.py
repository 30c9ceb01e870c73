"""Scatters that hit few places often: the updates go to several copies of the target, which are then combined.

The atomic updates of one address run one after the other, in the cache. On an H200, 64 million of them spread over 2^18 addresses or more
take 120 us, over 2^13 addresses 200 us and over 2^11 420 us; the same holds without vectors of addresses side by side (2^24 updates: 190 us
over 2^18 addresses, 490 us over 2^12). Consecutive positions along the axis that the indices depend on update different copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import prod

import sympy

from precast.lowering.analysis.effects import index_expr, loads, reads, writes
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.index import Modulo
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Const,
    Kernel,
    Load,
    Program,
    Reduce,
    Step,
    Store,
    StoreMode,
    axis_symbol,
    walk,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.ir.sympy_calls import symbols_of


@dataclass(frozen=True)
class Combination:
    """How copies are begun and combined."""

    reduction: ReduceOp
    op: Op
    neutral: float


COMBINATIONS: dict[StoreMode, Combination] = {
    "add": Combination(ReduceOp.SUM, Op.ADD, 0.0),
    "min": Combination(ReduceOp.MIN, Op.MIN, math.inf),
    "max": Combination(ReduceOp.MAX, Op.MAX, -math.inf),
}
WHOLE = (DType.I64, DType.I32)
"""Integers that have atomic updates; their sums are spread, too."""


def spread_updates(program: Program, traits: Traits) -> Program:
    """The program with copies of each target that is worth them."""
    buffers = {b.name: b for b in program.buffers}
    inputs = {name for name in program.inputs if isinstance(name, str)} | {c.buffer for c in program.constants}
    steps: list[Step] = []
    fresh: list[Buffer] = []
    for step in program.steps:
        copies = _copies(step, buffers, traits) if isinstance(step, Kernel) else None
        if copies is None or not isinstance(step, Kernel):
            steps.append(step)
            continue
        target, before = buffers[step.stores[0].buffer], f"{copies.name}_on"
        if target.name not in inputs and _write_elsewhere(steps, target.name, before):
            fresh.append(replace(target, name=before))
        else:
            before = target.name
        fresh.append(copies)
        steps += [_neutral(step, copies), _updates(step, copies), _together(step, target, before, copies)]
    return replace(program, steps=tuple(steps), buffers=(*program.buffers, *fresh)) if fresh else program


def _copies(kernel: Kernel, buffers: dict[str, Buffer], traits: Traits) -> Buffer | None:
    """The copies that the kernel's updates should go to; None where they are not worth it, or not possible."""
    store = kernel.stores[0]
    target = buffers[store.buffer]
    kind = target.dtype.compute
    if len(kernel.stores) != 1 or store.mode not in COMBINATIONS or not store.gathers or store.axes is not None:
        return None
    if not (kind.is_float or kind in WHOLE and store.mode == "add") or any(load.buffer == target.name for load in loads(kernel)):
        return None
    axis, span = _gathered_axis(kernel), _span(target)
    if axis is None or not span or prod(hint(a.extent) for a in kernel.axes) < traits.spread_updates:
        return None
    count = min(traits.spread_addresses // span, traits.spread_copies, hint(axis.extent))
    if count < traits.spread_least:
        return None
    return Buffer(f"{target.name}_copies", kind, (1 << count.bit_length() - 1, span), (span, 1))


def _span(buffer: Buffer) -> int:
    """How many elements there are; 0 where that is not known, or where they do not lie side by side."""
    if not all(isinstance(n, int) for n in (*buffer.size, *buffer.stride)) or 0 in buffer.size:
        return 0
    count = prod(int(n) for n in buffer.size)
    last = sum((int(n) - 1) * int(s) for n, s in zip(buffer.size, buffer.stride, strict=True))
    return count if last + 1 == count else 0


def _gathered_axis(kernel: Kernel) -> Axis | None:
    """The longest axis that the gathered positions depend on."""
    exprs = [index_expr(v) for g in kernel.stores[0].gathers for v in walk(g.value)]
    symbols = frozenset[sympy.Symbol]().union(*(symbols_of(e) for e in exprs if e is not None))
    return max((a for a in kernel.axes if a.symbol in symbols), key=lambda a: hint(a.extent), default=None)


def _write_elsewhere(steps: list[Step], name: str, other: str) -> bool:
    """Lets the one kernel that wrote buffer `name` so far write `other`; False where several did, or where anything read it."""
    found = [n for n, step in enumerate(steps) if name in (*writes(step), *reads(step))]
    if len(found) != 1 or not isinstance(kernel := steps[found[0]], Kernel):
        return False
    if any(s.buffer == name and s.mode != "set" for s in kernel.stores) or any(load.buffer == name for load in loads(kernel)):
        return False
    steps[found[0]] = replace(kernel, stores=tuple(replace(s, buffer=other) if s.buffer == name else s for s in kernel.stores))
    return True


def _neutral(kernel: Kernel, copies: Buffer) -> Kernel:
    """Fills the copies."""
    number = COMBINATIONS[kernel.stores[0].mode].neutral
    (count, span), place = copies.size, axis_symbol("i0")
    store = Store(copies.name, place, Const(number if copies.dtype.is_float else int(number), copies.dtype))
    return Kernel(f"{kernel.name}_begin", (shared_axis(place, ix.plain(count * span)),), (store,), kernel.origins)


def _updates(kernel: Kernel, copies: Buffer) -> Kernel:
    (store,), (count, span) = kernel.stores, copies.size
    axis = _gathered_axis(kernel)
    assert axis is not None
    index = store.index + span * Modulo(axis.symbol, sympy.sympify(count))
    return replace(kernel, stores=(replace(store, buffer=copies.name, index=index),))


def _together(kernel: Kernel, target: Buffer, before: str, copies: Buffer) -> Kernel:
    """The target: what it held before, and the copies."""
    how, (count, span), kind = COMBINATIONS[kernel.stores[0].mode], copies.size, copies.dtype
    names = ix.symbols(len(target.size))
    order = sorted((d for d, n in enumerate(target.size) if n != 1), key=lambda d: -int(target.stride[d]))
    place = ix.affine(0, tuple((target.stride[d], names[d]) for d in order))
    number = shared_axis(axis_symbol(f"copy_{count}"), count)
    added = Reduce(how.reduction, Load(copies.name, place + span * number.symbol, kind), (number,), kind)
    value = Alu(how.op, (Load(before, place, target.dtype), added), kind)
    axes = tuple(shared_axis(names[d], target.size[d]) for d in order)
    return Kernel(f"{kernel.name}_together", axes, (Store(target.name, place, value),), kernel.origins)


__all__ = ["spread_updates"]
