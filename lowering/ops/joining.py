"""Joining and padding."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder, Cost
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Index, Size, Value
from precast.lowering.ir.sizes import sizes
from precast.lowering.ops.creation import empty_sizes

MAX_INTERLEAVED, SECTOR = 4, 32
"""Parts of which each element is chosen by position where they alternate within a sector, and the bytes of one."""
MAX_INLINE_PARTS = 2
"""A join of this many cheap parts is inlined as a choice by position (rotary embeddings); a larger one is written part by part."""


@lowering("cat")
def cat(b: Builder, parts: Sequence[Tensor], dim: int = 0) -> Result:
    parts = [t for t in parts if not (t.rank == 1 and t.size[0] == 0 and len(b.size) != 1)]
    if empty_sizes(b.size) or not parts:
        return b.lazy(b.size, b.dtype, tx.constant(0, b.dtype))
    dim %= len(b.size)
    parts = [t for t in parts if t.size[dim] != 0]
    if len(parts) == 1:
        return v.lazy(b, v.value_of(parts[0], b.dtype))
    if (
        len(parts) <= MAX_INLINE_PARTS
        and all(Cost(t.body()).cheap for t in parts)
        and not b.is_result
        and b.reads == 1
        and not b.feeds_library
    ):
        return _choice(b, parts, dim)
    if _interleaved(b, parts, dim):
        return _choice(b, parts, dim)
    out = b.output()
    start: Size = 0
    for t in parts:
        b.store(tx.narrow(out, dim, start, t.size[dim]), t)
        start = ix.plain(start + t.size[dim])
    return out


def _interleaved(b: Builder, parts: Sequence[Tensor], dim: int) -> bool:
    """Whether a GPU would write less than a sector at a time, part by part: the last dimension of a stack of few, say."""
    if not b.on_gpu or len(parts) > MAX_INTERLEAVED or not all(Cost(t.body()).cheap for t in parts):
        return False
    runs = [ix.plain(t.size[dim] * sizes(b.value.stride())[dim]) for t in parts]
    return all(isinstance(n, int) and n * b.dtype.itemsize < SECTOR for n in runs)


def _choice(b: Builder, parts: Sequence[Tensor], dim: int) -> Tensor:
    place = ix.symbols(len(b.size))[dim]
    start: Size = 0
    pieces: list[tuple[Value, Value]] = []
    for t in parts:
        end = ix.plain(start + t.size[dim])
        mask = v.lt(Index(place), Index(sympy.sympify(end)))
        pieces.append((mask, padded_body(b, t, dim, start, b.size, mask, start != 0, end != b.size[dim])))
        start = end
    value = pieces[-1][1]
    for mask, body in reversed(pieces[:-1]):
        value = v.where(mask, body, value)
    return v.lazy(b, value)


def padded_body(b: Builder, t: Tensor, dim: int, start: Size, size: tuple[Size, ...], below: Value, low: bool, high: bool) -> Value:
    """`t`'s body at the points of `size`, `start` further on along `dim`; loads outside of it are masked."""
    names = list(ix.symbols(len(size)))
    place = names[dim]
    mask: Value | None = below if high else None
    if low:
        mask = tx.both(v.ge(Index(place), Index(sympy.sympify(start))), mask)
    names[dim] = place - start
    index = [e if n != 1 else sympy.S.Zero for e, n in zip(names, t.size, strict=True)]
    value = tx.cast(t.at(index, ix.extents_of(size)), b.dtype)
    return tx.masked(value, mask) if mask is not None else value


@lowering("stack")
def stack(b: Builder, parts: Sequence[Tensor], dim: int = 0) -> Result:
    dim %= len(b.size)
    return cat(b, [tx.unsqueeze(t, dim) for t in parts], dim)


@lowering("constant_pad_nd")
def constant_pad(b: Builder, x: Tensor, pad: Sequence[Size], value: v.Number = 0) -> Result:
    """Negative padding crops."""
    if not v.fits(value, x.dtype):
        return None
    mask: Value | None = None
    index: list[sympy.Expr] = list(ix.symbols(x.rank))
    for k in range(len(pad) // 2):
        dim = x.rank - 1 - k
        low, high = pad[2 * k], pad[2 * k + 1]
        name = index[dim]
        if b.size[dim] == 1:
            name = sympy.S.Zero
        index[dim] = name - low
        if low != 0 and not (isinstance(low, int) and low < 0):
            mask = tx.both(mask, v.ge(Index(name), Index(sympy.sympify(low))))
        if high != 0 and not (isinstance(high, int) and high < 0):
            mask = tx.both(mask, v.lt(Index(name), Index(sympy.sympify(ix.plain(x.size[dim] + low)))))
    if empty_sizes(b.size) or empty_sizes(x.size):
        return v.lazy(b, v.number(value, b.dtype))
    x = b.settle(x)
    index = [e if n != 1 or e.free_symbols == set() else sympy.S.Zero for e, n in zip(index, x.size, strict=True)]
    body = x.at(index, ix.extents_of(b.size))
    return v.lazy(b, body if mask is None else v.where(mask, tx.masked(body, mask), v.number(value, b.dtype)))
