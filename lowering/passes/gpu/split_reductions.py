"""Split reductions for GPUs: long reductions over few rows run in two steps, and nested reductions become kernels of their own.

A program of a kernel computes whole rows. Where there are fewer rows than processors each row is split into chunks: one kernel reduces each
chunk, and the kernel itself then reduces the chunks' results. Where each point of a reduction (or scan) needs a long reduction of its own,
a kernel before it computes the inner one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import sympy

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.rewrite_values import replace_values
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.index import FloorDiv
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Const,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Scan,
    Size,
    Step,
    Store,
    Value,
    axis_symbol,
    operands,
    walk,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import hint
from precast.lowering.ir.substitution import Mapping_, Rewriter, shared_axis

WRITTEN_OUT = 16
"""Reductions of so few points are written out by the renderer and may stand anywhere."""

Symbols = frozenset[sympy.Symbol]


def gpu_reductions(program: Program, traits: Traits) -> Program:
    """The program in which no kernel's reduction is nested, and none is longer than its number of rows allows."""
    steps: list[Step] = []
    buffers = list(program.buffers)
    for step in program.steps:
        if isinstance(step, Kernel) and any(isinstance(v, Reduce) for v in _values(step)):
            split = _Splitter(step, traits)
            step = split.run()
            steps.extend(split.before)
            buffers.extend(split.fresh)
        steps.append(step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


@dataclass(frozen=True, eq=False)
class _Cut:
    """`chunks`: new outer axes; `inner`: the reduction's axes with what is left of them; `place`: an old axis by the new ones."""

    chunks: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    place: dict[sympy.Symbol, Any]
    inside: tuple[tuple[Any, Size], ...]
    """`(position, extent)` of an axis that the chunks do not divide: points beyond the extent do not count."""


class _Splitter:
    """The state for one kernel. `before`, `fresh`: the kernels and buffers that splitting it adds."""

    def __init__(self, kernel: Kernel, traits: Traits) -> None:
        self.kernel, self.traits = kernel, traits
        self.before: list[Kernel] = []
        self.fresh: list[Buffer] = []

    def run(self) -> Kernel:
        """Inner reductions first: what contains them then needs their results only."""
        done: set[Value] = set()
        while True:
            free = _free_symbols(self.kernel)
            values = list(_values(self.kernel))
            nested = _nested(values, free)
            found = next((v for v in values if isinstance(v, Reduce) and v not in done and (v in nested or self._cut(v, free))), None)
            if found is None:
                return self.kernel
            done.add(found)
            new = self._moved(found, free) if found in nested else self._halved(found, free)
            self.kernel = replace_values(self.kernel, {found: new})

    def _moved(self, value: Reduce, free: dict[Value, Symbols]) -> Value:
        """The reduction from a kernel of its own, over all axes that it depends on."""
        return self._stored(value, self._outer(value, free), {}, value)

    def _halved(self, value: Reduce, free: dict[Value, Symbols]) -> Value:
        cut = self._cut(value, free)
        assert cut is not None
        item = value.value
        for position, extent in cut.inside:
            inside = Alu(Op.LT, (Index(position), _size(extent)), DType.BOOL)
            item = Alu(Op.WHERE, (inside, item, _neutral(value.op, item.dtype.compute)), item.dtype.compute)
        partial = Reduce(value.op, item, value.axes, value.dtype)
        axes = (*cut.chunks, *self._outer(value, free))
        load = self._stored(value, axes, cut.place, partial, cut)
        return Reduce(value.op, load, cut.chunks, value.dtype)

    def _outer(self, value: Value, free: dict[Value, Symbols]) -> tuple[Axis, ...]:
        """The axes that the value depends on: the kernel's, then those of what it stands in."""
        bound = [a for v in _values(self.kernel) if isinstance(v, Reduce) for a in v.axes]
        found = {a.symbol: a for a in (*bound, *self.kernel.axes) if a.symbol in free[value]}
        order = {a.symbol: n for n, a in enumerate((*self.kernel.axes, *bound))}
        return tuple(sorted(found.values(), key=lambda a: order[a.symbol]))

    def _stored(self, old: Reduce, axes: tuple[Axis, ...], place: dict[sympy.Symbol, Any], value: Reduce, cut: _Cut | None = None) -> Load:
        """Stores `value` (of `old`'s type) for each point of `axes` from a new kernel, and loads it at that point."""
        name = f"{self.kernel.stores[0].buffer}_split{len(self.fresh)}"
        size = tuple(a.extent for a in axes)
        stride = ix.contiguous_strides(size)
        self.fresh.append(Buffer(name, old.dtype.compute, size, stride))
        symbols = ix.symbols(len(axes))
        own = tuple(shared_axis(s, n) for s, n in zip(symbols, size, strict=True))
        renamed = {a.symbol: s for a, s in zip(axes, symbols, strict=True)}
        inner = value.axes if cut is None else cut.inner
        rewriter = Rewriter((*own, *inner), {})
        items: Mapping_ = (*renamed.items(), *((s, e.xreplace(renamed)) for s, e in place.items()))
        mask = None
        if cut is not None and cut.inside:
            conditions = [Alu(Op.LT, (Index(p.xreplace(place).xreplace(renamed)), _size(n)), DType.BOOL) for p, n in cut.inside]
            mask = conditions[0]
            for other in conditions[1:]:
                mask = Alu(Op.AND, (mask, other), DType.BOOL)
        moved = Reduce(value.op, rewriter.rewrite(value.value, rewriter.env(items, mask=mask)), inner, value.dtype)
        target = ix.affine(0, tuple(zip(stride, symbols, strict=True)))
        self._add(own, Store(name, target, moved))
        return Load(name, ix.affine(0, tuple((s, a.symbol) for s, a in zip(stride, axes, strict=True))), old.dtype.compute)

    def _add(self, axes: tuple[Axis, ...], store: Store) -> None:
        """Puts the store beside earlier ones over the same axes, where it needs nothing that comes between."""
        read = {v.buffer for v in walk(store.value) if isinstance(v, Load)}
        for position in range(len(self.before) - 1, -1, -1):
            kernel = self.before[position]
            if read & {s.buffer for s in kernel.stores}:
                break
            if kernel.axes == axes:
                self.before[position] = replace(kernel, stores=(*kernel.stores, store))
                return
        self.before.append(Kernel(f"{self.kernel.name}_split", axes, (store,), self.kernel.origins))

    def _cut(self, value: Reduce, free: dict[Value, Symbols]) -> _Cut | None:
        """How the reduction is cut, or None where it stays whole."""
        if value.op in (ReduceOp.ARGMIN, ReduceOp.ARGMAX):
            return None
        outer = self._outer(value, free)
        rows = prod(hint(a.extent) for a in outer)
        points = prod(hint(a.extent) for a in value.axes)
        together = min(rows, self._neighbours(value))
        programs = rows // together
        traits = self.traits
        if programs >= traits.idle_programs or points * together < traits.cut_work:
            return None
        wanted = min(traits.cut_programs // programs, points * together // traits.cut_chunk)
        return _cut_axes(value.axes, wanted)

    def _neighbours(self, value: Reduce) -> int:
        """How many rows one program reads together: several where neighbours in memory belong to different rows."""
        symbols = tuple(a.symbol for a in value.axes)
        sizes = [4]
        for load in walk(value.value):
            if isinstance(load, Load):
                found = ix.coefficients(load.index, symbols)
                if found is None or 1 in found[1]:
                    return 1
                sizes.append(load.dtype.itemsize)
        return self.traits.sector // min(sizes)


def _cut_axes(axes: tuple[Axis, ...], wanted: int) -> _Cut | None:
    """About `wanted` chunks, from the outermost axes."""
    chunks: list[Axis] = []
    inner: list[Axis] = []
    place: dict[sympy.Symbol, Any] = {}
    inside: list[tuple[Any, Size]] = []
    for number, axis in enumerate(axes):
        extent = hint(axis.extent)
        count = min(wanted, extent)
        if count > 1 and extent > 1:
            left: Size
            if isinstance(axis.extent, int):
                count = next((c for c in range(count, max(count // 2, 1), -1) if extent % c == 0), count)
                left = -(-extent // count)
                count = -(-extent // left)
            else:
                left = FloorDiv(axis.extent + (count - 1), sympy.Integer(count))
            chunk = shared_axis(axis_symbol(f"c{number}_{count}"), count)
            rest = shared_axis(axis_symbol(f"k{number}_{left if isinstance(left, int) else 'rest'}"), left)
            chunks.append(chunk)
            place[axis.symbol] = left * chunk.symbol + rest.symbol
            inner.append(rest)
            if not isinstance(axis.extent, int) or count * left != extent:
                inside.append((axis.symbol, axis.extent))
            wanted //= count
        else:
            inner.append(axis)
    return _Cut(tuple(chunks), tuple(inner), place, tuple(inside)) if chunks else None


def _size(size: Size) -> Value:
    return Const(size, DType.I64) if isinstance(size, int) else Index(size)


def _values(kernel: Kernel) -> Iterator[Value]:
    return walk(*(r for s in kernel.stores for r in store_roots(s)))


def _nested(values: list[Value], free: dict[Value, Symbols]) -> set[Value]:
    """Reductions of more than a few points that depend on a point of a reduction or scan in which they stand."""
    found: set[Value] = set()
    for value in values:
        if isinstance(value, Reduce | Scan):
            own = {a.symbol for a in value.axes} if isinstance(value, Reduce) else {value.axis.symbol}
            found |= {v for v in walk(value.value) if isinstance(v, Reduce) and free[v] & own and not _short(v)}
    return found


def _short(value: Reduce) -> bool:
    return all(isinstance(a.extent, int) for a in value.axes) and 0 < prod(int(a.extent) for a in value.axes) <= WRITTEN_OUT


def _free_symbols(kernel: Kernel) -> dict[Value, Symbols]:
    free: dict[Value, Symbols] = {}
    for value in _values(kernel):
        expr = index_expr(value)
        symbols = set(expr.free_symbols) if expr is not None else set()
        if isinstance(value, Load):
            symbols -= {g.symbol for g in value.gathers}
        for o in operands(value):
            symbols |= free[o]
        if isinstance(value, Reduce):
            symbols -= {a.symbol for a in value.axes}
        if isinstance(value, Scan):
            symbols.add(value.axis.symbol)
        free[value] = frozenset(symbols)
    return free


def _neutral(op: ReduceOp, dtype: DType) -> Const:
    """The value that changes nothing."""
    match op:
        case ReduceOp.SUM | ReduceOp.ANY:
            number: float = 0
        case ReduceOp.PROD | ReduceOp.ALL:
            number = 1
        case _:
            high = op is ReduceOp.MIN
            if dtype.is_float:
                number = float("inf") if high else float("-inf")
            else:
                bits = 8 * dtype.itemsize - (dtype is not DType.U8)
                number = (1 << bits) - 1 if high else (0 if dtype is DType.U8 else -(1 << bits))
    return Const(bool(number) if dtype is DType.BOOL else float(number) if dtype.is_float else int(number), dtype)
