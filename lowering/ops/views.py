"""Ops that only move indices."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Row, Tensor
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Size, View
from precast.lowering.ir.sizes import is_unbacked
from precast.lowering.ir.sympy_calls import at_most, equal, maximum, minimum
from precast.lowering.ir.sympy_calls import expand as expanded
from precast.lowering.ops.creation import empty_sizes


def copies(name: str, *overloads: str) -> tuple[str, ...]:
    """The view op's names and those of its copying twin."""
    return tuple(f"{base}.{o}" for base in (name, f"{name}_copy") for o in (overloads or ("default",)))


@lowering(*copies("view"), *copies("reshape"), "_unsafe_view", "_reshape_alias", view=True)
def view(b: Builder, x: Tensor, *ignored: object, **more: object) -> Result:
    return tx.reshape(x, b.size)


@lowering(*copies("alias"), *copies("detach"), "lift_fresh", "lift", view=True)
def same(b: Builder, x: Tensor) -> Result:
    return x


@lowering(*copies("permute"), view=True)
def permute(b: Builder, x: Tensor, dims: Sequence[int]) -> Result:
    return tx.permute(x, dims)


@lowering(*copies("transpose", "int"), view=True)
def transpose(b: Builder, x: Tensor, first: int, second: int) -> Result:
    order = list(range(x.rank))
    if order:
        order[first], order[second] = order[second], order[first]
    return tx.permute(x, order)


@lowering(*copies("t"), view=True)
def t(b: Builder, x: Tensor) -> Result:
    return tx.permute(x, tuple(reversed(range(x.rank))))


@lowering(*copies("expand"), view=True)
def expand(b: Builder, x: Tensor, size: Sequence[Size], implicit: bool = False) -> Result:
    """Broadcasting would compute an expensive body once per copy: such a body is computed into memory first."""
    if b.size != x.size:
        x = b.settle(x)
    return tx.expand(x, b.size)


@lowering(*copies("slice", "Tensor"), view=True)
def slice_tensor(b: Builder, x: Tensor, dim: int = 0, start: Size | None = None, end: Size | None = None, step: int = 1) -> Result:
    dim %= x.rank
    first = slice_start(x.size[dim], start)
    if any(is_unbacked(n) for n in (b.size[dim], first, end)):
        length = slice_length(x.size[dim], first, end, step)
        b.let(b.size[dim], length)
        b.require(equal(length, b.size[dim]), "a slice reaches beyond the end of its dimension: start + length exceeds the size")
    return tx.narrow(x, dim, first, b.size[dim], step)


def slice_length(extent: Size, first: Size, end: Size | None, step: int) -> Size:
    """How many positions a slice from `first` (already counted from the front) on takes."""
    last = extent if end is None or (isinstance(end, int) and end >= (1 << 62)) else slice_start(extent, end)
    span = maximum(last - first, 0)
    return ix.plain(-ix.FloorDiv(-span, sympy.Integer(step)))


def slice_start(extent: Size, start: Size | None) -> Size:
    """Where a Python slice starts: negative counts from the end, everything is clamped."""
    if start is None or start == 0:
        return 0
    if isinstance(start, int) and isinstance(extent, int):
        return min(start, extent) if start >= 0 else max(start + extent, 0)
    if ix.is_nonnegative(start):
        return start if ix.is_nonnegative(ix.plain(extent - start)) else ix.plain(minimum(start, extent))
    if ix.is_nonnegative(ix.plain(-start)):
        return ix.plain(extent + start) if ix.is_nonnegative(ix.plain(extent + start)) else ix.plain(maximum(extent + start, 0))
    return ix.plain(minimum(maximum(from_front(start, extent), 0), extent))


def from_front(position: Size, extent: Size) -> Size:
    """A position that may be negative, counted from the front: `-(position // 2**62)` is 1 where it is negative, else 0."""
    return ix.plain(position - extent * ix.FloorDiv(sympy.sympify(position), sympy.Integer(1 << 62)))


@lowering(*copies("select", "int"), view=True)
def select(b: Builder, x: Tensor, dim: int, position: Size) -> Result:
    dim %= x.rank
    return tx.select(x, dim, place_of(b, position, x.size[dim], dim))


def place_of(b: Builder, position: Size, extent: Size, dim: int) -> Size:
    """A position that may be negative, counted from the front; one that depends on data is checked at run time."""
    if isinstance(position, int):
        return ix.plain(position + extent) if position < 0 else position
    if is_unbacked(position):
        b.require_position(position, extent, dim)
    return position if ix.is_nonnegative(position) else from_front(position, extent)


@lowering(*copies("squeeze", "default", "dim", "dims"), view=True)
def squeeze(b: Builder, x: Tensor, dims: int | Sequence[int] | None = None) -> Result:
    if dims is None:
        wanted: Sequence[int] = range(x.rank)
    else:
        given: list[int] = list(dims) if isinstance(dims, list | tuple) else [dims]  # type: ignore[list-item]
        wanted = [d % x.rank for d in given] if x.rank else ()
    return tx.squeeze(x, wanted)


@lowering(*copies("unsqueeze"), view=True)
def unsqueeze(b: Builder, x: Tensor, dim: int) -> Result:
    return tx.unsqueeze(x, dim % (x.rank + 1))


@lowering(*copies("split", "Tensor"), *copies("split_with_sizes"), "unsafe_split.Tensor", "unsafe_split_with_sizes", view=True)
def split(b: Builder, x: Tensor, lengths: Size | Sequence[Size], dim: int = 0) -> Result:
    dim %= x.rank
    pieces: list[Tensor] = []
    start: Size = 0
    for piece in b.value:
        length = b.sizes(piece)[dim]
        pieces.append(tx.narrow(x, dim, start, length))
        start = ix.plain(start + length)
    return pieces


@lowering(*copies("unbind", "int"), view=True)
def unbind(b: Builder, x: Tensor, dim: int = 0) -> Result:
    dim %= x.rank
    return [tx.select(x, dim, k) for k in range(len(b.value))]


@lowering(*copies("diagonal"), view=True)
def diagonal(b: Builder, x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Result:
    return diagonal_of(x, b.size, offset, dim1, dim2)


def diagonal_of(x: Tensor, size: tuple[Size, ...], offset: int, dim1: int, dim2: int) -> Tensor:
    """The diagonal as the last dimension; `size` is the result's."""
    dim1, dim2 = dim1 % x.rank, dim2 % x.rank
    others = [d for d in range(x.rank) if d not in (dim1, dim2)]
    last = len(others)
    rows: list[Row] = [(0, ())] * x.rank
    for new, old in enumerate(others):
        rows[old] = (0, ((new, 1),))
    rows[dim1] = (max(-offset, 0), ((last, 1),))
    rows[dim2] = (max(offset, 0), ((last, 1),))
    return tx.remap(x, size, tuple(rows)) if size[last] != 0 else tx.reshape(tx.narrow(x, dim1, 0, 0), size)


@lowering(*copies("unfold"), view=True)
def unfold(b: Builder, x: Tensor, dim: int, size: int, step: int) -> Result:
    if not x.rank:
        return tx.reshape(x, b.size)
    dim %= x.rank
    rows: list[Row] = [(0, ((d, 1),)) for d in range(x.rank)]
    rows[dim] = (0, ((dim, step), (x.rank, 1)))
    return tx.remap(x, b.size, tuple(rows))


@lowering(*copies("as_strided"), view=True)
def as_strided(b: Builder, x: Tensor, size: Sequence[Size], stride: Sequence[Size], offset: Size | None = None) -> Result:
    """Counts from the start of the storage, which only the memory of a whole buffer of ours has for sure."""
    window = b.window(x)
    if offset is None:
        start = window.offset
    elif window.buffer.startswith("in"):
        return None  # the offset of an input into its storage is not known here
    else:
        start = offset
    if window.dtype is None and not _inside(b, b.named[window.buffer], stride, start):
        return None  # the library call knows how long the storage is, and raises eager's error
    return Tensor(b.size, x.dtype, View(window.buffer, b.size, tuple(stride), start, window.dtype))


def _inside(b: Builder, buffer: Buffer, stride: Sequence[Size], start: Size) -> bool:
    """Whether a view of these strides stays in the memory that the buffer spans; where only a run can tell, it is checked there."""
    if empty_sizes(b.size):
        return True
    reached, span = _reach(b.size, stride), _reach(buffer.size, buffer.stride)
    spare = ix.plain(expanded(span - reached - start))
    if isinstance(spare, int):
        return spare >= 0 and not empty_sizes(buffer.size)
    if not ix.is_nonnegative(spare):
        b.require(at_most(0, spare), "as_strided: the view reaches beyond the end of its storage")
    return True


def _reach(size: Sequence[Size], stride: Sequence[Size]) -> Size:
    """How far the last element lies behind the first."""
    return ix.plain(sympy.Add(*((n - 1) * s for n, s in zip(size, stride, strict=True))))


@lowering("flip", view=True)
def flip(b: Builder, x: Tensor, dims: Sequence[int]) -> Result:
    for dim in {d % x.rank for d in dims} if x.rank else ():
        x = tx.narrow(x, dim, ix.plain(x.size[dim] - 1), x.size[dim], -1) if x.size[dim] != 0 else x
    return x


@lowering("repeat")
def repeat(b: Builder, x: Tensor, repeats: Sequence[Size]) -> Result:
    """Index modulo the old extent: with the repeats as dimensions of their own when nothing moves but them."""
    if any(s == 0 for s in b.size):
        return b.lazy(b.size, b.dtype, tx.constant(0, b.dtype))
    x = b.settle(x)
    lead = len(b.size) - x.rank
    names, extents = ix.symbols(len(b.size)), ix.extents_of(b.size)
    index = [ix.modulo(names[d + lead], n, extents) if repeats[d + lead] != 1 else names[d + lead] for d, n in enumerate(x.size)]
    return tx.indexed(x, b.size, index)


@lowering("roll")
def roll(b: Builder, x: Tensor, shifts: Sequence[Size], dims: Sequence[int] = ()) -> Result:
    if x.numel == 0:
        return x
    if not dims:
        flat = tx.reshape(x, (x.numel,))
        return tx.reshape(_roll(flat, [(shifts[0], 0)]), x.size)
    moves = list(zip(shifts, dims, strict=True))
    if len(moves) == 1 and not isinstance(x.size[dims[0] % x.rank], int):
        return _joined_roll(b, b.settle(x), *moves[0])
    return _roll(x, moves)


def _joined_roll(b: Builder, x: Tensor, shift: Size, dim: int) -> Result:
    """The two parts one behind the other: no division at each point by a size that is known only at run time."""
    n = x.size[dim % x.rank]
    start = ix.plain(ix.modulo(ix.expand(sympy.sympify(-shift)), n, ()))
    rest, out, dim = ix.plain(n - start), b.output(), dim % x.rank
    b.store(tx.narrow(out, dim, 0, rest), tx.narrow(x, dim, start, rest))
    b.store(tx.narrow(out, dim, rest, start), tx.narrow(x, dim, 0, start))
    return out


def _roll(x: Tensor, moves: list[tuple[Size, int]]) -> Tensor:
    names, extents = ix.symbols(x.rank), ix.extents_of(x.size)
    index = list(names)
    for shift, dim in moves:
        dim %= x.rank
        n = x.size[dim]
        start = (-shift) % n if isinstance(n, int) and isinstance(shift, int) else ix.Modulo(sympy.sympify(-shift), sympy.sympify(n))
        index[dim] = ix.modulo(ix.simplify(index[dim] + start, extents), n, extents)
    return tx.indexed(x, x.size, [e if n != 1 else sympy.S.Zero for e, n in zip(index, x.size, strict=True)])
