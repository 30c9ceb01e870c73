"""Pooling: reductions over windows whose bounds are index expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from precast.lowering import index as ix
from precast.lowering import tensor as tx
from precast.lowering.builder import Builder
from precast.lowering.ir import Axis, Const, DType, Index, Op, Reduce, ReduceOp, Value
from precast.lowering.ops import values as v
from precast.lowering.ops.creation import empty_sizes
from precast.lowering.registry import Result, lowering
from precast.lowering.tensor import Tensor, alu


@dataclass(frozen=True)
class Window:
    """One spatial dimension: the axis over the window, the position it reads, and where that position counts."""

    axis: Axis
    place: sympy.Expr
    mask: Value | None
    count: Value | int  # positions that count, I64


def each(values: Sequence[int] | int, rank: int) -> tuple[int, ...]:
    """One value a spatial dimension; a single one is for all."""
    given = tuple(values) if isinstance(values, list | tuple) else (values,)
    return given * rank if len(given) == 1 else given


def _inside(place: sympy.Expr, extent: int, low: bool, high: bool) -> Value | None:
    mask: Value | None = v.ge(Index(place), Index(sympy.S.Zero)) if low else None
    return tx.both(mask, v.lt(Index(place), Index(sympy.Integer(extent)))) if high else mask


def _strided(
    b: Builder, dim: int, extent: int, kernel: int, stride: int, pad: int, dilation: int, include_pad: bool, number: int
) -> Window:
    out = b.size[dim]
    assert isinstance(out, int)
    axis = Axis(ix.reduction_symbol(number), kernel)
    first = ix.symbols(len(b.size))[dim] * stride - pad if out != 1 else sympy.Integer(-pad)
    place = first + (axis.symbol * dilation if kernel != 1 else 0)
    last = (out - 1) * stride - pad + (kernel - 1) * dilation
    mask = _inside(place, extent, pad > 0, last >= extent)
    start, reach = Index(first), Index(first + kernel)
    if mask is None or (include_pad and last < extent + pad):
        return Window(axis, place, mask, kernel)
    limit = extent + pad if include_pad else extent
    end = alu(Op.MIN, reach, tx.constant(limit, DType.I64)) if last >= limit else reach
    begin = start if include_pad or pad == 0 else alu(Op.MAX, start, tx.constant(0, DType.I64))
    return Window(axis, place, mask, alu(Op.SUB, end, begin))


def _adaptive(b: Builder, dim: int, extent: int, number: int) -> Window:
    """Window `o` covers `floor(o*extent/out) .. ceil((o+1)*extent/out)`."""
    out = b.size[dim]
    assert isinstance(out, int)
    place = ix.symbols(len(b.size))[dim] if out != 1 else sympy.S.Zero
    if extent % out == 0:
        axis = Axis(ix.reduction_symbol(number), extent // out)
        return Window(axis, place * (extent // out) + (axis.symbol if axis.extent != 1 else 0), None, extent // out)
    extents = ix.extents_of(b.size)
    start = ix.floordiv(ix.expand(place * extent), out, extents)
    end = ix.floordiv(ix.expand((place + 1) * extent + out - 1), out, extents)
    longest = max(-(-(o + 1) * extent // out) - o * extent // out for o in range(out))
    axis = Axis(ix.reduction_symbol(number), longest)
    place = start + (axis.symbol if longest != 1 else 0)
    inside = v.lt(Index(place), Index(end)) if longest != 1 else None
    return Window(axis, place, inside, alu(Op.SUB, Index(end), Index(start)))


def pool(b: Builder, x: Tensor, windows: Sequence[Window], op: ReduceOp, out: Tensor, divisor: Value | None = None) -> Tensor:
    """Reduces the windows over the trailing dimensions of `x` into `out`."""
    rank = len(windows)
    names = ix.symbols(x.rank)
    lead = [n if s != 1 else sympy.S.Zero for n, s in zip(names[: x.rank - rank], x.size, strict=False)]
    mask: Value | None = None
    for w in windows:
        mask = tx.both(mask, w.mask)
    extents = (*ix.extents_of(out.size), *((w.axis.symbol, w.axis.extent) for w in windows))
    value = x.at([*lead, *(w.place for w in windows)], extents)
    if mask is not None:
        neutral = tx.constant(0, x.dtype) if op is ReduceOp.SUM else lowest(x.dtype)
        value = v.where(mask, tx.masked(value, mask), neutral)
    axes = tuple(w.axis for w in windows if w.axis.extent != 1)
    kind = x.dtype.compute
    found: Value = Reduce(op, value, axes, kind) if axes else value
    b.store(out, b.lazy(out.size, out.dtype, found if divisor is None else v.div(found, tx.cast(divisor, kind))))
    return out


def lowest(dtype: DType) -> Value:
    """The least value of the type."""
    if dtype.is_float:
        return tx.constant(-math.inf, dtype)
    return tx.constant(0 if dtype in (DType.U8, DType.BOOL) else -(1 << (8 * dtype.itemsize - 1)), dtype)


def _poolable(b: Builder, x: Tensor) -> bool:
    return not empty_sizes(x.size) and not empty_sizes(b.size) and all(isinstance(n, int) for n in (*x.size, *b.size))


def _max_pool(
    b: Builder,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
    *,
    rank: int,
) -> Result:
    """Where the indices are read, the call stays whole."""
    if b.is_used(1) or not _poolable(b, x) or x.dtype is DType.BOOL:
        return None
    sides, steps = each(kernel, rank), each(stride or kernel, rank)
    pads, gaps = each(padding, rank), each(dilation, rank)
    x = b.settle(x)
    windows = [
        _strided(b, x.rank - rank + k, int(x.size[x.rank - rank + k]), sides[k], steps[k], pads[k], gaps[k], False, k) for k in range(rank)
    ]
    return pool(b, x, windows, ReduceOp.MAX, b.output(0)), None


def _avg_pool(
    b: Builder,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    rank: int,
) -> Result:
    if not _poolable(b, x) or not x.dtype.is_float:
        return None
    sides, steps, pads = each(kernel, rank), each(stride or kernel, rank), each(padding, rank)
    x = b.settle(x)
    windows = [
        _strided(b, x.rank - rank + k, int(x.size[x.rank - rank + k]), sides[k], steps[k], pads[k], 1, count_include_pad, k)
        for k in range(rank)
    ]
    divisor = tx.constant(divisor_override, DType.I64) if divisor_override is not None else _count(windows)
    return pool(b, x, windows, ReduceOp.SUM, b.output(), divisor)


def _count(windows: Sequence[Window]) -> Value:
    fixed = math.prod(w.count for w in windows if isinstance(w.count, int))
    value: Value = tx.constant(fixed, DType.I64)
    for w in windows:
        if not isinstance(w.count, int):
            value = w.count if fixed == 1 and isinstance(value, Const) else alu(Op.MUL, value, w.count)
    return value


def _adaptive_avg(b: Builder, x: Tensor, size: Sequence[int] | int, *, rank: int) -> Result:
    if not _poolable(b, x) or not x.dtype.is_float:
        return None
    x = b.settle(x)
    windows = [_adaptive(b, x.rank - rank + k, int(x.size[x.rank - rank + k]), k) for k in range(rank)]
    return pool(b, x, windows, ReduceOp.SUM, b.output(), _count(windows))


def _adaptive_max(b: Builder, x: Tensor, size: Sequence[int] | int, *, rank: int) -> Result:
    if b.is_used(1) or not _poolable(b, x):
        return None
    x = b.settle(x)
    windows = [_adaptive(b, x.rank - rank + k, int(x.size[x.rank - rank + k]), k) for k in range(rank)]
    return pool(b, x, windows, ReduceOp.MAX, b.output(0)), None


def _register() -> None:
    for rank in (1, 2, 3):
        for name, rule in (
            (f"max_pool{rank}d_with_indices", _max_pool),
            (f"avg_pool{rank}d", _avg_pool),
            (f"_adaptive_avg_pool{rank}d", _adaptive_avg),
            (f"adaptive_max_pool{rank}d", _adaptive_max),
        ):

            def of_rank(b: Builder, *args: object, _rule: object = rule, _rank: int = rank, **kwargs: object) -> Result:
                return _rule(b, *args, rank=_rank, **kwargs)  # type: ignore[operator, no-any-return]

            lowering(name)(of_rank)


_register()
