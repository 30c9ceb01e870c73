"""Lazy tensors: a size, a dtype and either a strided window of a buffer or a body over canonical axis symbols.

A body of rank n speaks about `symbols(n)`: `i0` is the innermost dimension, so broadcasting over leading dimensions renames nothing.
Dimensions of size 1 never appear in a body. Views are index maps: on a strided window they are integer arithmetic on strides,
otherwise the body's symbols are substituted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Cast, Const, Gather, Index, Load, Reduce, Scan, Size, Value, View, operands
from precast.lowering.ir.scalars import DType, Op

Row = tuple[Size, tuple[tuple[int, Size], ...]]
"""One old index as an affine function of the new dimensions: `offset + sum(coefficient * index[new dimension])`."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """`size` and storage `dtype`; `window` where the tensor lies in memory, else `value`, its body (in `dtype.compute`)."""

    size: tuple[Size, ...]
    dtype: DType
    window: View | None = None
    value: Value | None = None
    _body: list[Value] = field(default_factory=list, repr=False)

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def numel(self) -> Size:
        return ix.numel(self.size)

    def body(self) -> Value:
        """The value at the canonical symbols."""
        if self.value is not None:
            return self.value
        if not self._body:
            self._body.append(self.at(ix.symbols(self.rank), ix.extents_of(self.size)))
        return self._body[0]

    def at(self, index: Sequence[sympy.Expr], extents: ix.Extents) -> Value:
        """The value at an index whose symbols have these extents."""
        if self.window is not None:
            terms = tuple((s, e) for n, s, e in zip(self.size, self.window.stride, index, strict=True) if n != 1)
            place = ix.simplify(ix.affine(self.window.offset, terms), extents)
            return Load(self.window.buffer, place, self.dtype)
        assert self.value is not None
        pairs = zip(self.size, ix.symbols(self.rank), index, strict=True)
        mapping = tuple((s, e) for n, s, e in pairs if n != 1 and s is not e)
        return substitute(self.value, mapping, extents) if mapping else self.value


def constant(value: bool | int | float, dtype: DType) -> Const:
    """The constant in `dtype`'s arithmetic type; integers wrap."""
    kind = dtype.compute
    if kind is DType.BOOL:
        return Const(bool(value), kind)
    if kind.is_float:
        return Const(float(value), kind)
    bits = 8 * kind.itemsize
    number = int(value) & ((1 << bits) - 1)
    return Const(number - (1 << bits) if kind is not DType.U8 and number >> (bits - 1) else number, kind)


def alu(op: Op, *args: Value) -> Value:
    """An operation in the type of its operands (the last one's, for WHERE)."""
    return Alu(op, args, args[-1].dtype.compute)


def compare(op: Op, *args: Value) -> Value:
    return Alu(op, args, DType.BOOL)


def cast(value: Value, dtype: DType) -> Value:
    """Conversion to the arithmetic type of `dtype`; conversions that change nothing vanish."""
    kind = dtype.compute
    if value.dtype.compute is kind:
        return value
    if isinstance(value, Const):
        number = value.value
        if not (isinstance(number, float) and not kind.is_float and number - number != 0):
            return constant(number, kind)
    if isinstance(value, Index) and kind is DType.I64:
        return Index(value.expr)
    return Cast(value, kind)


def rounded(value: Value, dtype: DType) -> Value:
    """The value as eager's storage type holds it: for discontinuous operations (comparisons, rounding, casts to integers). What is loaded
    is rounded for sure only where it is an input: fusion may put the unrounded value in its place.
    """
    held = isinstance(value, Cast) or (isinstance(value, Load) and value.buffer.startswith("in"))
    if dtype.compute is dtype or isinstance(value, Const) or (held and value.dtype is dtype):
        return value
    return Cast(value, dtype)


def both(a: Value | None, b: Value | None) -> Value | None:
    """The conjunction of two masks."""
    return b if a is None else a if b is None or a is b else alu(Op.AND, a, b)


def rebuild(value: Value, change: Any) -> Value:
    """`value` with `change(node, operands' results)` applied bottom up, each distinct node once (iterative: bodies can be deep)."""
    done: dict[int, Value] = {}
    stack: list[tuple[Value, bool]] = [(value, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done[id(node)] = change(node, lambda v: done[id(v)])
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in operands(node) if id(child) not in done)
    return done[id(value)]


def with_operands(node: Value, get: Any) -> Value:
    """The node over other operands, which `get` gives for its own; loads are kept as they are."""
    match node:
        case Alu(op=op, args=args, dtype=dtype):
            new = tuple(get(a) for a in args)
            return node if all(a is b for a, b in zip(args, new, strict=True)) else Alu(op, new, dtype)
        case Cast(value=v, dtype=dtype):
            return node if get(v) is v else Cast(get(v), dtype)
        case Reduce(op=op, value=v, axes=axes, dtype=dtype):
            return node if get(v) is v else Reduce(op, get(v), axes, dtype)
        case Scan(op=op, value=v, axis=axis, dtype=dtype):
            return node if get(v) is v else Scan(op, get(v), axis, dtype)
        case _:
            return node


def substitute(value: Value, mapping: tuple[tuple[sympy.Symbol, sympy.Expr], ...], extents: ix.Extents) -> Value:
    """`value` with axis symbols replaced all at once; indices are simplified under the extents of the new symbols."""

    def change(node: Value, get: Any) -> Value:
        match node:
            case Load(buffer=buffer, index=place, dtype=dtype, gathers=gathers, mask=mask):
                known = extents if not gathers else (*extents, *((g.symbol, g.size) for g in gathers))
                bound = tuple(Gather(g.symbol, get(g.value), g.size, g.checked, g.wraps) for g in gathers)
                return Load(buffer, ix.substitute(place, mapping, known), dtype, bound, None if mask is None else get(mask))
            case Index(expr=expr, dtype=dtype):
                return Index(ix.substitute(expr, mapping, extents), dtype)
            case _:
                return with_operands(node, get)

    return rebuild(value, change)


def masked(value: Value, mask: Value) -> Value:
    """`value` with every load guarded by `mask`: nothing is read where it is false."""

    def change(node: Value, get: Any) -> Value:
        if isinstance(node, Load):
            bound = tuple(Gather(g.symbol, get(g.value), g.size, g.checked, g.wraps) for g in node.gathers)
            old = None if node.mask is None else get(node.mask)
            return Load(node.buffer, node.index, node.dtype, bound, both(old, mask))
        return with_operands(node, get)

    return rebuild(value, change)


def remap(t: Tensor, size: tuple[Size, ...], rows: tuple[Row, ...]) -> Tensor:
    """A view: each dimension of `t` is indexed by an affine function of the new dimensions."""
    if t.window is not None:
        offset = t.window.offset
        strides: list[Size] = [0] * len(size)
        for stride, (start, parts) in zip(t.window.stride, rows, strict=True):
            if start != 0:
                offset = offset + stride * start
            for dim, factor in parts:
                strides[dim] = strides[dim] + stride * factor
        # a flip has a factor of -1, and no tensor of torch's walks backwards, whether the stride's number is known or not
        forwards = all(ix.is_nonnegative(factor) for _, parts in rows for _, factor in parts)
        if forwards or all(isinstance(s, int) and s >= 0 for s in strides):
            window = View(t.window.buffer, size, tuple(ix.plain(s) for s in strides), ix.plain(offset), t.window.dtype)
            return Tensor(size, t.dtype, window)
    names = ix.symbols(len(size))
    index = tuple(ix.affine(start, tuple((f, names[d]) for d, f in parts if size[d] != 1)) for start, parts in rows)
    return indexed(t, size, index)


def indexed(t: Tensor, size: tuple[Size, ...], index: Sequence[sympy.Expr]) -> Tensor:
    """The tensor whose element is `t`'s at `index`, expressions over the canonical symbols of `size`."""
    return Tensor(size, t.dtype, value=t.at(index, ix.extents_of(size)))


def located(t: Tensor) -> Tensor:
    """The same tensor as a window, where its body does nothing but read one."""
    body = t.value
    if not isinstance(body, Load) or body.gathers or body.mask is not None or body.dtype is not t.dtype:
        return t
    names = tuple(s for s, n in zip(ix.symbols(t.rank), t.size, strict=True) if n != 1)
    found = ix.coefficients(body.index, names)
    if found is None:
        return t
    offset, factors = found
    if not all(ix.is_nonnegative(f) for f in (offset, *factors)):
        return t
    known = dict(zip(names, factors, strict=True))
    stride: list[Size] = [1] * t.rank
    following: Size = 1
    for d in range(t.rank - 1, -1, -1):
        stride[d] = known.get(ix.symbols(t.rank)[d], following)
        following = ix.plain(stride[d] * t.size[d])
    return Tensor(t.size, t.dtype, View(body.buffer, t.size, tuple(stride), offset))


def permute(t: Tensor, dims: Sequence[int]) -> Tensor:
    order = [d % t.rank for d in dims]
    rows: list[Row] = [(0, ())] * t.rank
    for new, old in enumerate(order):
        rows[old] = (0, ((new, 1),))
    return remap(t, tuple(t.size[d] for d in order), tuple(rows))


def expand(t: Tensor, size: Sequence[Size]) -> Tensor:
    """Broadcast to `size` (no -1)."""
    size = tuple(size)
    if size == t.size:
        return t
    lead = len(size) - t.rank
    if t.window is None:
        return Tensor(size, t.dtype, value=t.value)
    rows: list[Row] = [(0, ((d + lead, 1),)) if n == size[d + lead] else (0, ()) for d, n in enumerate(t.size)]
    return remap(t, size, tuple(rows))


def reshape(t: Tensor, size: Sequence[Size]) -> Tensor:
    """Row-major reshape; a window where strides allow it."""
    size = tuple(size)
    if size == t.size:
        return t
    if t.window is not None:
        strides = view_strides(t.size, t.window.stride, size)
        if strides is not None:
            return Tensor(size, t.dtype, View(t.window.buffer, size, strides, t.window.offset, t.window.dtype))
    if any(s == 0 for s in size):
        return Tensor(size, t.dtype, value=constant(0, t.dtype))
    return indexed(t, size, ix.reshape_index(t.size, size))


def view_strides(old: tuple[Size, ...], stride: tuple[Size, ...], new: tuple[Size, ...]) -> tuple[Size, ...] | None:
    """Strides of a row-major reshape that needs no copy, or None."""
    if any(s == 0 for s in new):
        return ix.contiguous_strides(new)
    dims = [(n, s) for n, s in zip(old, stride, strict=True) if n != 1]
    # Runs of dimensions that are contiguous with one another.
    runs: list[list[Size]] = []  # [elements, innermost stride]
    for n, s in dims:
        if runs and ix.plain(ix.expand(s * n) if not isinstance(s * n, int) else s * n) == runs[-1][1]:
            runs[-1] = [ix.numel((runs[-1][0], n)), s]
        else:
            runs.append([n, s])
    result: list[Size] = [1] * len(new)
    d = len(new) - 1
    for elements, step in reversed(runs):
        left: Size = 1
        while left != elements:
            if d < 0:
                return None
            if new[d] != 1:
                result[d] = ix.plain(step * left)
                left = ix.numel((left, new[d]))
                if isinstance(left, int) and isinstance(elements, int) and left > elements:
                    return None
            d -= 1
    while d >= 0:
        if new[d] != 1:
            return None
        d -= 1
    following: Size = 1
    for d in range(len(new) - 1, -1, -1):  # a dimension of size 1 gets the stride that a contiguous one would have
        if new[d] == 1:
            result[d] = following
        following = ix.plain(result[d] * new[d])
    return tuple(result)


def select(t: Tensor, dim: int, position: Size) -> Tensor:
    """Drops `dim`, taken at `position` (not negative)."""
    size = t.size[:dim] + t.size[dim + 1 :]
    rows: list[Row] = [(0, ((d if d < dim else d - 1, 1),)) for d in range(t.rank)]
    rows[dim] = (position, ())
    return remap(t, size, tuple(rows))


def narrow(t: Tensor, dim: int, start: Size, length: Size, step: int = 1) -> Tensor:
    """`length` positions of `dim` from `start` on, `step` apart (a negative step walks down)."""
    rows: list[Row] = [(0, ((d, 1),)) for d in range(t.rank)]
    rows[dim] = (start, ((dim, step),))
    return remap(t, (*t.size[:dim], length, *t.size[dim + 1 :]), tuple(rows))


def squeeze(t: Tensor, dims: Sequence[int]) -> Tensor:
    """Without the dimensions of size 1 among `dims`."""
    dropped = {d for d in dims if t.size[d] == 1}
    kept = [d for d in range(t.rank) if d not in dropped]
    rows: list[Row] = [(0, ((kept.index(d), 1),)) if d not in dropped else (0, ()) for d in range(t.rank)]
    return remap(t, tuple(t.size[d] for d in kept), tuple(rows))


def unsqueeze(t: Tensor, dim: int) -> Tensor:
    """With a dimension of size 1 before `dim`; on a window its stride is what torch gives it."""
    size = (*t.size[:dim], 1, *t.size[dim:])
    if t.window is not None:
        old = t.window.stride
        stride = (*old[:dim], ix.plain(t.size[dim] * old[dim]) if dim < t.rank else 1, *old[dim:])
        return Tensor(size, t.dtype, View(t.window.buffer, size, stride, t.window.offset, t.window.dtype))
    rows: list[Row] = [(0, ((d if d < dim else d + 1, 1),)) for d in range(t.rank)]
    return remap(t, size, tuple(rows))
