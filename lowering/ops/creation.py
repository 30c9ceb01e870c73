"""Tensors from nothing: constants and positions."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.float_values import is_real
from precast.lowering.build.lazy_tensor import Tensor, alu
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Index, Size, Value
from precast.lowering.ir.scalars import DType, Op


def position(dim: int, size: tuple[Size, ...]) -> Value:
    """The index along `dim` as an I64 value."""
    return Index(ix.symbols(len(size))[dim]) if size[dim] != 1 else Index(sympy.S.Zero)


@lowering("full", "full_like", "scalar_tensor", "new_full")
def full(b: Builder, *args: object, **ignored: object) -> Result:
    """The fill value is the last positional argument."""
    value = args[-1] if len(args) else ignored["fill_value"]
    if not v.fits(value, b.dtype):  # type: ignore[arg-type]
        return None
    return v.lazy(b, v.number(value, b.dtype) if not isinstance(value, Tensor) else v.value_of(value, b.dtype))  # type: ignore[arg-type]


@lowering(
    "zeros",
    "zeros_like",
    "new_zeros",
    "empty.memory_format",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
)
def zeros(b: Builder, *ignored: object, **more: object) -> Result:
    """Memory that eager leaves uninitialised is zero here."""
    return v.lazy(b, tx.constant(0, b.dtype))


@lowering("ones", "ones_like", "new_ones")
def ones(b: Builder, *ignored: object, **more: object) -> Result:
    return v.lazy(b, tx.constant(1, b.dtype))


@lowering("arange", "arange.start", "arange.start_step")
def arange(b: Builder, *args: v.Number, **ignored: object) -> Result:
    start, step = (args[0] if len(args) > 1 else 0), (args[2] if len(args) > 2 else 1)
    place = position(0, b.size)
    if not b.dtype.is_float:  # as eager: counted in integers
        if is_real(start) or is_real(step):
            return None
        start, step = (int(n) if isinstance(n, float) else n for n in (start, step))
        assert isinstance(place, Index)
        return v.lazy(b, Index(start + place.expr * step))
    wide = tx.cast(place, DType.F64)  # as eager: computed in double
    value = v.add(v.number(start, DType.F64), v.mul(wide, v.number(step, DType.F64)))
    return v.lazy(b, tx.cast(value, b.dtype))


@lowering("linspace")
def linspace(b: Builder, start: v.Number, end: v.Number, steps: Size, **ignored: object) -> Result:
    """Counts up from the start in the first half and down from the end in the second, so that both ends are exact."""
    if not isinstance(steps, int) or not b.dtype.is_float:
        return None
    place = tx.cast(position(0, b.size), DType.F64)
    first, last = (v.number(n if isinstance(n, sympy.Expr) else float(n), DType.F64) for n in (start, end))
    step = v.div(v.sub(last, first), v.const(place, steps - 1.0)) if steps > 1 else v.const(place, 0.0)
    low = v.add(first, v.mul(place, step))
    high = v.sub(last, v.mul(v.sub(v.const(place, steps - 1.0), place), step))
    return v.lazy(b, v.where(v.lt(place, v.const(place, float(steps // 2 if steps > 1 else 1))), low, high))


@lowering("eye", "eye.m")
def eye(b: Builder, *ignored: object, **more: object) -> Result:
    return v.lazy(b, tx.cast(v.eq(position(0, b.size), position(1, b.size)), b.dtype))


def _triangle(b: Builder, x: Tensor, diagonal: Size, keep_below: bool) -> Tensor:
    row, column = position(x.rank - 2, x.size), position(x.rank - 1, x.size)
    edge = alu(Op.ADD, row, v.number(diagonal, DType.I64)) if diagonal != 0 else row
    keep = v.le(column, edge) if keep_below else v.ge(column, edge)
    return b.lazy(x.size, x.dtype, v.where(keep, x.body(), tx.constant(0, x.dtype)))


@lowering("tril")
def tril(b: Builder, x: Tensor, diagonal: Size = 0) -> Result:
    return _triangle(b, x, diagonal, keep_below=True)


@lowering("triu")
def triu(b: Builder, x: Tensor, diagonal: Size = 0) -> Result:
    return _triangle(b, x, diagonal, keep_below=False)


@lowering("one_hot")
def one_hot(b: Builder, x: Tensor, classes: int = -1) -> Result:
    if classes < 0:
        return None
    body = tx.unsqueeze(x, x.rank).body()
    return v.lazy(b, tx.cast(v.eq(body, tx.cast(position(x.rank, b.size), x.dtype)), b.dtype))


def empty_sizes(size: Sequence[Size]) -> bool:
    """Whether a tensor of that size holds nothing."""
    return any(s == 0 for s in size)
