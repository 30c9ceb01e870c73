"""Split reductions for GPUs: long reductions over few rows run in two steps, and nested reductions become kernels of their own.

A program of a kernel computes whole rows. Where rows are too few to keep memory busy each row is split into chunks: one kernel reduces
each chunk, and the kernel itself then reduces the chunks' results. Rows of which memory has only short runs in one piece (the channels of
a group in a channels-last image) lie between one another: there chunks are of single columns, which lie side by side. A mean with the
squares about it, or a maximum with the exponentials beside it, is split as one: each chunk has a pair of its own, so that the row is read
once for both. Where each point of a reduction (or scan) needs a long reduction of its own, a kernel before it computes the inner one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

import sympy

from precast.lowering.analysis.effects import index_expr, store_roots
from precast.lowering.analysis.rewrite_values import replace_values
from precast.lowering.analysis.row_statistics import Pair, joined, pairs_of, rows_in_one_piece, within
from precast.lowering.analysis.traits import Traits
from precast.lowering.ir import index as ix
from precast.lowering.ir.index import FloorDiv
from precast.lowering.ir.nodes import (
    Alu,
    Axis,
    Buffer,
    Cast,
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
from precast.lowering.ir.sympy_calls import renamed

WRITTEN_OUT = 16
"""Reductions of so few points are written out by the renderer and may stand anywhere."""

PLACES = {ReduceOp.ARGMIN: ReduceOp.MIN, ReduceOp.ARGMAX: ReduceOp.MAX}
FAR = (1 << 63) - 1
MOST_RESULTS = 1024
"""Results of the chunks of one row at most: a program reduces so many anew for a block of a row (`codegen/triton/render/heuristics.py`)."""

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
    column: Axis | None = None
    """The one of the chunks along which memory runs, and on into the next row, `row`."""
    row: Axis | None = None


@dataclass(frozen=True, eq=False)
class _Place:
    """A kernel to be made: `axes` as the old kernel names them, and its `own`; what old symbols become (`items`); where a point counts
    (`inside`; None: everywhere), and the axes of its reductions (`inner`).
    """

    axes: tuple[Axis, ...]
    own: tuple[Axis, ...]
    items: Mapping_
    inside: Value | None
    inner: tuple[Axis, ...]

    def at(self, value: Value) -> Value:
        """A value of the old kernel."""
        rewriter = Rewriter((*self.own, *self.inner), {})
        return rewriter.rewrite(value, rewriter.env(self.items, mask=self.inside))

    def where(self, value: Value, otherwise: Value) -> Value:
        """The value where its point counts."""
        return value if self.inside is None else Alu(Op.WHERE, (self.inside, value, otherwise), value.dtype.compute)


class _Splitter:
    """The state for one kernel. `before`, `fresh`: the kernels and buffers that splitting it adds."""

    def __init__(self, kernel: Kernel, traits: Traits) -> None:
        self.kernel, self.traits = kernel, traits
        self.before: list[Kernel] = []
        self.fresh: list[Buffer] = []
        self.names: dict[tuple[Axis, ...], Rewriter] = {}
        """Names the bound axes of all that is computed over the same axes: it may become one kernel, where a name has one extent."""
        self.chunks: set[Axis] = set()
        """Axes over the results of chunks, which are not cut again."""

    def run(self) -> Kernel:
        """Inner reductions first: what contains them then needs their results only."""
        done: set[Value] = set()
        while True:
            free = _free_symbols(self.kernel)
            values = list(_values(self.kernel))
            nested = _nested(values, free)
            found = next((v for v in values if isinstance(v, Reduce) and v not in done and (v in nested or self._cut(v, free))), None)
            if found is None:
                return self._finished() if self.chunks else self.kernel
            done.add(found)
            instead = self._everywhere(found, values, free) if found in nested else self._halved(found, free)
            self.kernel = replace_values(self.kernel, instead)

    def _finished(self) -> Kernel:
        """The kernel, with what it makes of its chunks' results in a kernel before it where its rows are not in one piece of memory: then
        it runs over all points in memory's order.
        """
        if rows_in_one_piece(self.kernel):
            return self.kernel
        self._results_of_rows_first()
        free = _free_symbols(self.kernel)
        whole: set[Value] = {v for v in _values(self.kernel) if isinstance(v, Reduce)}
        for value in _values(self.kernel):  # operands first
            if any(o in whole for o in operands(value)) and not isinstance(value, Reduce):
                whole.add(value)
        rows = frozenset().union(*(free[v] for v in whole if isinstance(v, Reduce)))
        made = {v for v in whole if free[v] <= rows}
        last = {o for v in _values(self.kernel) if v not in made for o in operands(v) if o in made}
        instead: dict[Value, Value] = {}
        for value in _values(self.kernel):
            if value in last:
                place = self._place(self._outer(value, free), None)
                instead[value] = self._kept(place, place.at(value))
        return replace_values(self.kernel, instead)

    def _results_of_rows_first(self) -> None:
        """Moves stores of one element a row, the statistics themselves, to the kernel before this one."""
        read = {v.buffer for v in _values(self.kernel) if isinstance(v, Load)}
        written = [s.buffer for s in self.kernel.stores]
        free = _free_symbols(self.kernel)
        rows = {a for v in _values(self.kernel) if isinstance(v, Reduce) for a in self._outer(v, free)}
        kept: list[Store] = []
        for store in self.kernel.stores:
            axes = self.kernel.axes if store.axes is None else store.axes
            plain = store.mode == "set" and not store.gathers and store.mask is None
            if set(axes) <= rows and plain and store.buffer not in read and written.count(store.buffer) == 1:
                self._store(self._place(axes, None), store)
            else:
                kept.append(store)
        if kept:
            self.kernel = replace(self.kernel, stores=tuple(kept))

    def _store(self, place: _Place, store: Store) -> None:
        """The old kernel's store, from a new kernel."""
        names = self.names.setdefault(place.own, Rewriter(place.own, {}))
        value = names.rewrite(place.at(store.value), names.env(()))
        self._add(place.own, Store(store.buffer, renamed(store.index, dict(place.items)), value))

    def _everywhere(self, value: Reduce, values: list[Value], free: dict[Value, Symbols]) -> dict[Value, Value]:
        """The reduction from a kernel of its own, over all axes that it depends on, and with it each that is the same at other points.
        Summed in another order that could differ in its last bits, and nothing would equal its maximum, by which gradients are divided.
        """
        place, moved = self._own(value, free)
        load = self._kept(place, moved)
        found: dict[Value, Value] = {value: load}
        for other in values:
            if isinstance(other, Reduce) and other is not value and _alike(other, value):
                there, same = self._own(other, free)
                if there.own == place.own and same is moved:
                    strides = ix.contiguous_strides(tuple(a.extent for a in there.axes))
                    index = ix.affine(0, tuple((s, a.symbol) for s, a in zip(strides, there.axes, strict=True)))
                    found[other] = Load(load.buffer, index, load.dtype)
        return found

    def _own(self, value: Reduce, free: dict[Value, Symbols]) -> tuple[_Place, Value]:
        """The kernel that the reduction would be made in, and the reduction there."""
        place = self._place(self._outer(value, free), None)
        names = self.names.setdefault(place.own, Rewriter(place.own, {}))
        return place, names.rewrite(Reduce(value.op, place.at(value.value), value.axes, value.dtype), names.env(()))

    def _halved(self, value: Reduce, free: dict[Value, Symbols]) -> dict[Value, Value]:
        """The reduction over the results of its chunks, and what goes with it: the second of a pair, the place of an extreme."""
        cut = self._cut(value, free)
        assert cut is not None
        self.chunks.update(cut.chunks)
        outer = self._outer(value, free)
        place = self._place(self._in_order(value, cut, outer), cut)
        if value.op in PLACES:
            return {value: self._first_place(value, cut, place)}
        item = place.at(value.value)
        part = Reduce(value.op, place.where(item, _neutral(value.op, item.dtype.compute)), cut.inner, value.dtype)
        load = self._kept(place, part)
        whole = Reduce(value.op, load, cut.chunks, value.dtype)
        found: dict[Value, Value] = {value: whole}
        for pair in pairs_of(_values(self.kernel)):
            if pair.first is value:
                found[pair.second] = self._second(pair, cut, place, (item, part, load, whole))
        return found

    def _in_order(self, value: Reduce, cut: _Cut, outer: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """The axes of the chunks' results, neighbours in memory last."""
        if cut.column is not None and cut.row is not None:
            last = (cut.row, cut.column)
            return (*(a for a in (*cut.chunks, *outer) if a not in last), *last)
        return (*cut.chunks, *outer) if self._neighbours(value) > 1 else (*outer, *cut.chunks)

    def _second(self, pair: Pair, cut: _Cut, place: _Place, first: tuple[Value, Value, Value, Value]) -> Value:
        """The second of a pair over the results of its chunks. `first`: of the first the item and the result of a chunk, in the chunks'
        kernel; the loaded result, and the whole, in this one.
        """
        item, part, load, whole = first
        kind = pair.second.dtype
        points = _points(cut, kind)
        divisor = points if isinstance(points, Const) else Alu(Op.MAX, (points, Const(1.0, kind)), kind)
        zero = Const(0.0, kind)
        own = Reduce(ReduceOp.SUM, place.where(within(pair, item, part, place.at(divisor)), zero), cut.inner, kind)
        second = self._kept(place, own)
        return Reduce(ReduceOp.SUM, joined(pair, whole, load, second, points, divisor), cut.chunks, kind)

    def _first_place(self, value: Reduce, cut: _Cut, place: _Place) -> Value:
        """The place of an extreme: of the chunks that have it, the one with the lowest."""
        item = place.at(value.value)
        kind = item.dtype.compute
        item = place.where(item, _neutral(PLACES[value.op], kind))
        extreme = self._kept(place, Reduce(PLACES[value.op], item, cut.inner, kind))
        where = self._kept(place, Reduce(value.op, item, cut.inner, value.dtype))
        whole = Reduce(PLACES[value.op], extreme, cut.chunks, kind)
        has: Value = Alu(Op.EQ, (extreme, whole), DType.BOOL)
        if kind.is_float:
            nothing = [Alu(Op.NE, (v, v), DType.BOOL) for v in (extreme, whole)]
            has = Alu(Op.OR, (has, Alu(Op.AND, tuple(nothing), DType.BOOL)), DType.BOOL)
        start = ix.plain(sum(e.xreplace({a.symbol: 0 for a in cut.inner}) * s for e, s in _linear(value.axes, cut)))
        linear = Alu(Op.ADD, (where, Index(sympy.sympify(start))), DType.I64)
        return Reduce(ReduceOp.MIN, Alu(Op.WHERE, (has, linear, Const(FAR, DType.I64)), DType.I64), cut.chunks, DType.I64)

    def _outer(self, value: Value, free: dict[Value, Symbols]) -> tuple[Axis, ...]:
        """The axes that the value depends on: the kernel's, then those of what it stands in."""
        bound = [a for v in _values(self.kernel) if isinstance(v, Reduce) for a in v.axes]
        found = {a.symbol: a for a in (*bound, *self.kernel.axes) if a.symbol in free[value]}
        order = {a.symbol: n for n, a in enumerate((*self.kernel.axes, *bound))}
        return tuple(sorted(found.values(), key=lambda a: order[a.symbol]))

    def _place(self, axes: tuple[Axis, ...], cut: _Cut | None) -> _Place:
        size = tuple(a.extent for a in axes)
        symbols = ix.symbols(len(axes))
        own = tuple(shared_axis(s, n) for s, n in zip(symbols, size, strict=True))
        own_names = {a.symbol: s for a, s in zip(axes, symbols, strict=True)}
        old = {} if cut is None else {s: e.xreplace(own_names) for s, e in cut.place.items()}
        inside: Value | None = None
        for position, extent in () if cut is None else cut.inside:
            here = Alu(Op.LT, (Index(old[position]), _size(extent)), DType.BOOL)
            inside = here if inside is None else Alu(Op.AND, (inside, here), DType.BOOL)
        return _Place(axes, own, (*own_names.items(), *old.items()), inside, () if cut is None else cut.inner)

    def _kept(self, place: _Place, value: Value) -> Load:
        """Stores a value of a new kernel for each of its points, and loads it at that point."""
        name = f"{self.kernel.stores[0].buffer}_split{len(self.fresh)}"
        size = tuple(a.extent for a in place.axes)
        stride = ix.contiguous_strides(size)
        dtype = value.dtype.compute
        self.fresh.append(Buffer(name, dtype, size, stride))
        names = self.names.setdefault(place.own, Rewriter(place.own, {}))
        value = names.rewrite(value, names.env(()))
        target = ix.affine(0, tuple((s, a.symbol) for s, a in zip(stride, place.own, strict=True)))
        self._add(place.own, Store(name, target, value))
        return Load(name, ix.affine(0, tuple((s, a.symbol) for s, a in zip(stride, place.axes, strict=True))), dtype)

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
        if self.chunks.intersection(value.axes):
            return None
        outer = self._outer(value, free)
        rows = prod(hint(a.extent) for a in outer)
        points = prod(hint(a.extent) for a in value.axes)
        run = self._short_run(value, outer)
        if run is not None:
            return self._cut_columns(value, run, rows, points)
        together = min(rows, self._neighbours(value))
        programs = max(1, rows // together)
        traits = self.traits
        wanted = traits.cut_programs * traits.processors // programs
        if any(set(self.kernel.axes if s.axes is None else s.axes) - set(outer) for s in self.kernel.stores):
            wanted = max(wanted, 2 * WRITTEN_OUT)  # written out, the chunks' results would be combined for each point of the row
        wanted = min(wanted, points * together // traits.cut_chunk)
        if wanted < 2 or not self._pays(value, rows, points, programs, together):
            return None
        return _cut_axes(value.axes, wanted)

    def _cut_columns(self, value: Reduce, run: tuple[Axis, Axis], rows: int, points: int) -> _Cut | None:
        """Into its columns, each of them in as many pieces as memory wants."""
        column, row = run
        traits, width = self.traits, int(column.extent)
        itemsize = min((v.dtype.itemsize for v in walk(value.value) if isinstance(v, Load)), default=4)
        length = width * itemsize
        used = length / (length + traits.sector - gcd(length, traits.sector))  # of the sectors that a run touches, wherever it begins
        if points / used <= traits.step_points:
            used = 1.0  # a program holds the neighbouring rows that share a sector, as those of a pool's windows
        if not self._pays(value, rows, points, rows, 1, used):
            return None
        together = min(rows * width, traits.line // itemsize)
        wanted = min(traits.cut_programs * traits.processors * together // (rows * width), points // width * together // traits.cut_chunk)
        wanted = min(wanted, MOST_RESULTS // width)
        rest = tuple(a for a in value.axes if a is not column)
        pieces = _cut_axes(rest, wanted) or _Cut((), rest, {}, ())
        own = shared_axis(axis_symbol(f"column_{width}"), width)
        return replace(pieces, chunks=(*pieces.chunks, own), place={**pieces.place, column.symbol: own.symbol}, column=own, row=row)

    def _short_run(self, value: Reduce, outer: tuple[Axis, ...]) -> tuple[Axis, Axis] | None:
        """The reduction's axis along which memory runs, and the row's along which it runs on, where the first fills no line by itself."""
        if value.op in PLACES or len(value.axes) < 2 or not outer:
            return None
        axes = (*value.axes, *outer)
        found: set[tuple[Axis, Axis]] = set()
        for load in walk(value.value):
            if not isinstance(load, Load):
                continue
            strides = ix.coefficients(load.index, tuple(a.symbol for a in axes))
            if strides is None:
                return None
            steps = [(a, n) for a, n in zip(axes, strides[1], strict=True) if a.extent != 1]
            column = next((a for a, n in steps if n == 1), None)
            row = None if column is None else next((a for a, n in steps if n == column.extent and a in outer), None)
            if column is None or row is None or column not in value.axes or not isinstance(column.extent, int):
                return None
            if column.extent * load.dtype.itemsize >= self.traits.line:
                return None
            found.add((column, row))
        return found.pop() if len(found) == 1 else None

    def _pays(self, value: Reduce, rows: int, points: int, programs: int, together: int, used: float = 1.0) -> bool:
        """Whether programs for whole rows would ask memory for so little at once that a second kernel is cheaper. `used`: the share of
        what memory hands out that such a program needs.
        """
        traits = self.traits
        width = sum({(v.buffer, v.index): v.dtype.itemsize for v in walk(value.value) if isinstance(v, Load)}.values())
        step = points if together == 1 and points <= traits.row_points else min(points * together, traits.step_points)
        at_once = step * max(width, 1) * programs
        full = rows * points * max(width, 1) / traits.memory_rate
        share = min(1.0, at_once / traits.bytes_in_flight) * used
        return full / share > traits.cut_gain * (full + traits.second_launch)

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
        return self.traits.line // min(sizes)


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
            wanted = -(-wanted // count) if left == 1 else 1  # chunks are in the order of the points
        else:
            inner.append(axis)
    return _Cut(tuple(chunks), tuple(inner), place, tuple(inside)) if chunks else None


def _points(cut: _Cut, kind: DType) -> Value:
    """How many points of a chunk count."""
    whole = _number(ix.numel(a.extent for a in cut.inner), kind)
    for symbol, extent in cut.inside:
        position = cut.place[symbol]
        (rest,) = (a for a in cut.inner if a.symbol in position.free_symbols)
        left = Alu(Op.SUB, (_number(extent, kind), Cast(Index(position.xreplace({rest.symbol: 0})), kind)), kind)
        full = _number(rest.extent, kind)
        share = Alu(Op.MAX, (Alu(Op.MIN, (left, full), kind), Const(0.0, kind)), kind)
        whole = Alu(Op.MUL, (whole, Alu(Op.DIV, (share, full), kind)), kind)
    return whole


def _number(size: Size, kind: DType) -> Value:
    return Const(float(size), kind) if isinstance(size, int) else Cast(Index(size), kind)


def _linear(axes: tuple[Axis, ...], cut: _Cut) -> Iterator[tuple[Any, Size]]:
    """Each axis' position in terms of chunks and what is left of it, and its stride in the reduction's linear index."""
    for axis, stride in zip(axes, ix.contiguous_strides(tuple(a.extent for a in axes)), strict=True):
        yield cut.place.get(axis.symbol, sympy.S.Zero), stride


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


def _alike(a: Reduce, b: Reduce) -> bool:
    """Whether two reductions can be the same at different points."""
    return a.op is b.op and a.dtype is b.dtype and [x.extent for x in a.axes] == [x.extent for x in b.axes]


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
