"""Pooling: reductions over windows whose bounds are index expressions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor, alu
from precast.lowering.build.registry import LOWERINGS, Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Const, Index, Reduce, Size, Value
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ops.creation import empty_sizes
from precast.pool_operators import NUMBERS


@dataclass(frozen=True)
class Window:
    """One spatial dimension of a pooling window: the axis that runs over it, the input position that a step of the axis reads, and the
    mask of steps that lie inside of the input (padding does not count).
    """

    axis: Axis
    place: sympy.Expr
    mask: Value | None
    count: Value | int  # positions that count, I64
    first: sympy.Expr  # the position that it reads first, which may lie before the tensor
    step: int = 1


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
        return Window(axis, place, mask, kernel, first, dilation)
    limit = extent + pad if include_pad else extent
    end = alu(Op.MIN, reach, tx.constant(limit, DType.I64)) if last >= limit else reach
    begin = start if include_pad or pad == 0 else alu(Op.MAX, start, tx.constant(0, DType.I64))
    return Window(axis, place, mask, alu(Op.SUB, end, begin), first, dilation)


def _adaptive(b: Builder, dim: int, extent: int, number: int) -> Window:
    """Window `o` covers `floor(o*extent/out) .. ceil((o+1)*extent/out)`."""
    out = b.size[dim]
    assert isinstance(out, int)
    place = ix.symbols(len(b.size))[dim] if out != 1 else sympy.S.Zero
    if extent % out == 0:
        axis = Axis(ix.reduction_symbol(number), extent // out)
        first = place * (extent // out)
        return Window(axis, first + (axis.symbol if axis.extent != 1 else 0), None, extent // out, first)
    extents = ix.extents_of(b.size)
    start = ix.floordiv(ix.expand(place * extent), out, extents)
    end = ix.floordiv(ix.expand((place + 1) * extent + out - 1), out, extents)
    longest = max(-(-(o + 1) * extent // out) - o * extent // out for o in range(out))
    axis = Axis(ix.reduction_symbol(number), longest)
    place = start + (axis.symbol if longest != 1 else 0)
    inside = v.lt(Index(place), Index(end)) if longest != 1 else None
    return Window(axis, place, inside, alu(Op.SUB, Index(end), Index(start)), start)


def _over_positions(w: Window, extent: int, symbol: sympy.Symbol, out: int) -> Window:
    """The window as a mask of all positions of the tensor, where it has more than those: a kernel of 1280 over an image of 7 by 7."""
    size = int(w.axis.extent)
    if w.step != 1 or size <= extent:
        return w
    axis = Axis(w.axis.symbol, extent)
    place = axis.symbol if extent != 1 else sympy.S.Zero
    first, last = (w.first.subs(symbol, n) for n in (0, out - 1))
    mask: Value | None = v.ge(Index(place), Index(w.first)) if last > 0 else None
    if first + size < extent:
        mask = tx.both(mask, v.lt(Index(place), Index(w.first + size)))
    return replace(w, axis=axis, place=place, mask=mask)


def pool(b: Builder, x: Tensor, windows: Sequence[Window], op: ReduceOp, out: Tensor, divisor: Value | None = None) -> Tensor:
    """Reduces the windows over the trailing dimensions of `x` into `out`."""
    rank = len(windows)
    names = ix.symbols(len(out.size))[-rank:]
    inputs, outputs = x.size[x.rank - rank :], out.size[len(out.size) - rank :]
    windows = [_over_positions(w, int(n), s, int(o)) for w, n, s, o in zip(windows, inputs, names, outputs, strict=True)]
    neutral = tx.constant(0, x.dtype) if op is ReduceOp.SUM else lowest(x.dtype)
    value = _read(x, windows, out.size, neutral)
    axes = tuple(w.axis for w in windows if w.axis.extent != 1)
    kind = x.dtype.compute
    found: Value = Reduce(op, value, axes, kind) if axes else value
    b.store(out, b.lazy(out.size, out.dtype, found if divisor is None else v.div(found, tx.cast(divisor, kind))))
    return out


def _read(x: Tensor, windows: Sequence[Window], size: tuple[Size, ...], neutral: Value) -> Value:
    """What the windows see, and `neutral` where they see nothing."""
    rank = len(windows)
    names = ix.symbols(x.rank)
    lead = [n if s != 1 else sympy.S.Zero for n, s in zip(names[: x.rank - rank], x.size, strict=False)]
    mask: Value | None = None
    for w in windows:
        mask = tx.both(mask, w.mask)
    extents = (*ix.extents_of(size), *((w.axis.symbol, w.axis.extent) for w in windows))
    value = x.at([*lead, *(w.place for w in windows)], extents)
    return value if mask is None else v.where(mask, tx.masked(value, mask), neutral)


def _max_place(b: Builder, x: Tensor, windows: Sequence[Window], out: Tensor, numbers: bool) -> Tensor:
    """Where in the trailing dimensions each window has its maximum: the last NaN, else the first of equals, as eager has it. `numbers`:
    where in the window.
    """
    value = _read(x, windows, out.size, lowest(x.dtype))
    value = tx.rounded(value, x.dtype)  # ties as in eager's memory
    axes = tuple(w.axis for w in windows if w.axis.extent != 1)
    at: Value = tx.constant(0, DType.I64)
    if axes:
        at = Reduce(ReduceOp.ARGMAX, value, axes, DType.I64)
        if x.dtype.is_float:
            number = sympy.S.Zero
            for axis in axes:
                number = number * axis.extent + axis.symbol
            last = Reduce(ReduceOp.MAX, v.where(v.isnan(value), Index(number), tx.constant(-1, DType.I64)), axes, DType.I64)
            at = v.where(v.ge(last, tx.constant(0, DType.I64)), last, at)
    place: Value = tx.constant(0, DType.I64)
    for w, extent in zip(windows, x.size[x.rank - len(windows) :], strict=True):
        inner = math.prod(int(o.axis.extent) for o in windows[windows.index(w) + 1 :])
        step = alu(Op.FLOORDIV, at, tx.constant(inner, DType.I64)) if inner != 1 else at
        at = v.sub(at, v.mul(step, tx.constant(inner, DType.I64)))
        here = v.add(Index(w.first), v.mul(step, tx.constant(w.step, DType.I64)))
        if w.mask is not None:  # a window of least values has it at its start, which may lie before the tensor
            first = alu(Op.MOD, here, tx.constant(w.step, DType.I64))
            if numbers:
                first = alu(Op.FLOORDIV, v.sub(first, Index(w.first)), tx.constant(w.step, DType.I64))
            here = v.where(v.lt(here, tx.constant(0, DType.I64)), first, step if numbers else here)
        elif numbers:
            here = step
        place = v.add(v.mul(place, tx.constant(int(w.axis.extent if numbers else extent), DType.I64)), here)
    b.store(out, b.lazy(out.size, out.dtype, tx.cast(place, out.dtype)))
    return out


WRITTEN_OUT = 16
"""Windows of at most so many positions are compared one after the other, without a loop."""


def _fixed(w: Window, number: int, extents: ix.Extents) -> Window:
    """The window with one position, its `number`th."""
    mapping = ((w.axis.symbol, sympy.Integer(number)),)
    mask = None if w.mask is None else tx.substitute(w.mask, mapping, extents)
    return replace(w, axis=Axis(w.axis.symbol, 1), place=ix.substitute(w.place, mapping, extents), mask=mask)


def _compared(b: Builder, x: Tensor, windows: Sequence[Window], numbers: bool) -> Result:
    """Small windows: one comparison a position, which runs as vectors. A later NaN wins over an earlier one, as in eager. `numbers`: of
    positions within windows, in place of indices.
    """
    extents = ix.extents_of(b.sizes(b.value[0]))
    sizes = [int(n) for n in x.size[x.rank - len(windows) :]]
    seen: list[tuple[Value, Value | None, Value]] = []
    for steps in itertools.product(*(range(int(w.axis.extent)) for w in windows)):
        fixed = [_fixed(w, n, extents) for w, n in zip(windows, steps, strict=True)]
        inside: Value | None = None
        distance = 0
        for w, n, extent in zip(fixed, steps, sizes, strict=True):
            inside = tx.both(inside, w.mask)
            distance = distance * extent + n * w.step
        distance = len(seen) if numbers else distance
        value = tx.rounded(_read(x, fixed, b.sizes(b.value[0]), lowest(x.dtype)), x.dtype)  # ties as in eager's memory
        seen.append((value, inside, tx.constant(distance, DType.I32)))
    best = lowest(x.dtype)
    at = seen[-1][2]
    for _, inside, offset in reversed(seen[:-1]):  # the first that is inside stands where none is larger
        at = offset if inside is None else v.where(inside, offset, at)
    for value, _, offset in seen:
        more = v.gt(value, best)
        more = v.either(more, v.isnan(value)) if x.dtype.is_float else more
        best = v.where(more, value, best)
        if numbers:  # no second conditional on one condition: with a store between the two, g++ vectorises neither
            at = v.maximum(at, v.mul(tx.cast(more, DType.I32), offset))
        else:
            at = v.where(more, offset, at)
    found, places = b.output(0), b.output(1)
    b.store(found, b.lazy(found.size, x.dtype, best))
    if not numbers:
        start: Value = tx.constant(0, DType.I64)
        for w, extent in zip(windows, sizes, strict=True):
            start = v.add(v.mul(start, tx.constant(extent, DType.I64)), Index(w.first))
        at = v.add(start, tx.cast(at, DType.I64))
    b.store(places, b.lazy(places.size, places.dtype, tx.cast(at, places.dtype)))
    return found, places


def _maxima(b: Builder, x: Tensor, windows: Sequence[Window], numbers: bool = False) -> Result:
    """The maxima, and where they are if that is read."""
    if b.is_used(1) and math.prod(int(w.axis.extent) for w in windows) <= WRITTEN_OUT and math.prod(map(int, x.size)) < 1 << 31:
        return _compared(b, x, windows, numbers)
    return pool(b, x, windows, ReduceOp.MAX, b.output(0)), _max_place(b, x, windows, b.output(1), numbers) if b.is_used(1) else None


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
    numbers: bool = False,
) -> Result:
    if not _poolable(b, x) or x.dtype is DType.BOOL:
        return None
    sides, steps = each(kernel, rank), each(stride or kernel, rank)
    pads, gaps = each(padding, rank), each(dilation, rank)
    x = b.settle(x)
    windows = [
        _strided(b, x.rank - rank + k, int(x.size[x.rank - rank + k]), sides[k], steps[k], pads[k], gaps[k], False, k) for k in range(rank)
    ]
    return _maxima(b, x, windows, numbers)


def _max_pool_numbers(b: Builder, x: Tensor, kernel: Sequence[int], *more: object) -> Result:
    return _max_pool(b, x, kernel, *more, rank=len(kernel), numbers=True)  # type: ignore[arg-type]


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
    if not _poolable(b, x):
        return None
    x = b.settle(x)
    return _maxima(b, x, [_adaptive(b, x.rank - rank + k, int(x.size[x.rank - rank + k]), k) for k in range(rank)])


def _register() -> None:
    LOWERINGS[NUMBERS] = _max_pool_numbers
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
