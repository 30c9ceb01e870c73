"""Reductions, and what is made of a few of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor, alu
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Size, Value
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ir.sizes import Unsupported
from precast.lowering.ops.creation import empty_sizes

Dims = Sequence[int] | int | None


def dims_of(x: Tensor, dims: Dims) -> list[int]:
    """Dimensions counted from the front; none given means all."""
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return list(range(x.rank))
    wanted: list[int] = list(dims) if isinstance(dims, list | tuple) else [dims]  # type: ignore[list-item]
    return [d % max(x.rank, 1) for d in wanted] if x.rank else []


def count(x: Tensor, dims: Sequence[int]) -> Size:
    return ix.numel(x.size[d] for d in dims)


@lowering("sum", "sum.dim_IntList", "sum.default")
def sum_(b: Builder, x: Tensor, dims: Dims = None, keepdim: bool = False, dtype: object = None) -> Result:
    return b.reduce(ReduceOp.SUM, x, dims_of(x, dims), b.dtype, keepdim)


@lowering("mean", "mean.dim")
def mean(b: Builder, x: Tensor, dims: Dims = None, keepdim: bool = False, dtype: object = None) -> Result:
    return mean_of(b, x, dims_of(x, dims), keepdim, b.dtype)


def mean_of(b: Builder, x: Tensor, dims: Sequence[int], keepdim: bool, dtype: DType) -> Tensor:
    """The sum in wide arithmetic, divided before it is stored."""
    return b.reduce(ReduceOp.SUM, x, dims, dtype, keepdim, finish=lambda s: v.div(s, v.number(count(x, dims), s.dtype)))


@lowering("prod", "prod.dim_int")
def prod(b: Builder, x: Tensor, dims: Dims = None, keepdim: bool = False, dtype: object = None) -> Result:
    return b.reduce(ReduceOp.PROD, x, dims_of(x, dims), b.dtype, keepdim)


@lowering("amax")
def amax(b: Builder, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Result:
    return extreme(b, ReduceOp.MAX, x, dims_of(x, dims), keepdim)


@lowering("amin")
def amin(b: Builder, x: Tensor, dims: Dims = None, keepdim: bool = False) -> Result:
    return extreme(b, ReduceOp.MIN, x, dims_of(x, dims), keepdim)


lowering("max")(lambda b, x: extreme(b, ReduceOp.MAX, x, _of_something(x, range(x.rank)), False))
lowering("min")(lambda b, x: extreme(b, ReduceOp.MIN, x, _of_something(x, range(x.rank)), False))


def _of_something(x: Tensor, dims: Sequence[int]) -> Sequence[int]:
    """`dims`. Raises Unsupported where eager raises and tracing does not: nothing has no largest element."""
    if any(x.size[d] == 0 for d in dims):
        raise Unsupported("an extreme over a dimension without elements, which eager PyTorch does not compute")
    return dims


def extreme(b: Builder, op: ReduceOp, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    if x.dtype is DType.BOOL:
        return b.reduce(ReduceOp.ANY if op is ReduceOp.MAX else ReduceOp.ALL, x, dims, DType.BOOL, keepdim)
    return b.reduce(op, x, dims, x.dtype, keepdim)


@lowering("aminmax")
def aminmax(b: Builder, x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Result:
    x = b.settle(x)
    dims = dims_of(x, dim)
    return extreme(b, ReduceOp.MIN, x, dims, keepdim), extreme(b, ReduceOp.MAX, x, dims, keepdim)


def _with_index(b: Builder, x: Tensor, dim: int, keepdim: bool, op: ReduceOp, arg: ReduceOp) -> Result:
    x = b.settle(x)
    dims = _of_something(x, dims_of(x, dim))
    return extreme(b, op, x, dims, keepdim), b.reduce(arg, _comparable(b, x), dims, DType.I64, keepdim)


def _comparable(b: Builder, x: Tensor) -> Tensor:
    """What is compared by position: ties are those of eager's memory."""
    if x.dtype is DType.BOOL:
        return b.lazy(x.size, DType.U8, x.body())
    return b.lazy(x.size, x.dtype, tx.rounded(x.body(), x.dtype)) if x.dtype.compute is not x.dtype else x


lowering("max.dim")(lambda b, x, dim, keepdim=False: _with_index(b, x, dim, keepdim, ReduceOp.MAX, ReduceOp.ARGMAX))
lowering("min.dim")(lambda b, x, dim, keepdim=False: _with_index(b, x, dim, keepdim, ReduceOp.MIN, ReduceOp.ARGMIN))


def _arg(b: Builder, x: Tensor, dim: int | None, keepdim: bool, op: ReduceOp) -> Result:
    if dim is None and not keepdim:
        return b.reduce(op, _comparable(b, tx.reshape(b.settle(x), (x.numel,))), [0], DType.I64)
    return b.reduce(op, _comparable(b, x), dims_of(x, dim), DType.I64, keepdim)


lowering("argmax")(lambda b, x, dim=None, keepdim=False: _arg(b, x, dim, keepdim, ReduceOp.ARGMAX))
lowering("argmin")(lambda b, x, dim=None, keepdim=False: _arg(b, x, dim, keepdim, ReduceOp.ARGMIN))


def _truth(b: Builder, x: Tensor, dims: Dims, keepdim: bool, op: ReduceOp) -> Result:
    flags = b.lazy(x.size, DType.BOOL, v.truth(tx.rounded(x.body(), x.dtype)))
    found = b.reduce(op, flags, dims_of(x, dims), DType.BOOL, keepdim)
    return found if b.dtype is DType.BOOL else b.lazy(found.size, b.dtype, found.body())


lowering("any", "any.dim", "any.dims")(lambda b, x, dim=None, keepdim=False: _truth(b, x, dim, keepdim, ReduceOp.ANY))
lowering("all", "all.dim", "all.dims")(lambda b, x, dim=None, keepdim=False: _truth(b, x, dim, keepdim, ReduceOp.ALL))


@lowering("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(b: Builder, x: Tensor, dims: Dims = None) -> Result:
    return b.reduce(
        ReduceOp.SUM, b.lazy(x.size, DType.I64, tx.cast(v.truth(tx.rounded(x.body(), x.dtype)), DType.I64)), dims_of(x, dims), DType.I64
    )


def moments(b: Builder, x: Tensor, dims: Sequence[int], correction: v.Number, keepdim: bool, dtype: DType) -> tuple[Tensor, Tensor]:
    """Mean and variance in two passes (numerically safe), in `dtype`'s arithmetic type."""
    x = b.settle(x)
    average = mean_of(b, x, dims, True, dtype.compute)
    away = v.sub(tx.cast(x.body(), dtype), average.body())
    spread = b.lazy(x.size, dtype.compute, v.mul(away, away))
    n = count(x, dims)

    def finish(total: Value) -> Value:
        left = n - correction
        if isinstance(left, int | float):
            return v.div(total, v.const(total, float(max(left, 0))))
        return v.div(total, v.maximum(v.number(left, total.dtype), v.const(total, 0.0)))

    variance = b.reduce(ReduceOp.SUM, spread, dims, dtype.compute, keepdim, finish=finish)
    return (average if keepdim else tx.reshape(average, variance.size)), variance


def _correction(unbiased: object, correction: v.Number | None) -> v.Number:
    return (1 if unbiased else 0) if isinstance(unbiased, bool) else (1 if correction is None else correction)


@lowering("var.correction", "var", "var.dim")
def var(
    b: Builder, x: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: v.Number | None = None
) -> Result:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    _, variance = moments(b, x, dims_of(x, dim), _correction(unbiased, correction), keepdim, b.dtype)
    return b.lazy(variance.size, b.dtype, variance.body()) if b.dtype is not variance.dtype else variance


@lowering("std.correction", "std", "std.dim")
def std(
    b: Builder, x: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: v.Number | None = None
) -> Result:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    _, variance = moments(b, x, dims_of(x, dim), _correction(unbiased, correction), keepdim, b.dtype)
    return b.lazy(variance.size, b.dtype, alu(Op.SQRT, variance.body()))


@lowering("var_mean.correction", "std_mean.correction")
def var_mean(b: Builder, x: Tensor, dim: Dims = None, *, correction: v.Number | None = None, keepdim: bool = False) -> Result:
    average, variance = moments(b, x, dims_of(x, dim), 1 if correction is None else correction, keepdim, b.dtype)
    return b.lazy(variance.size, b.dtype, variance.body()), b.lazy(average.size, b.dtype, average.body())


@lowering("std_mean.correction")
def std_mean(b: Builder, x: Tensor, dim: Dims = None, *, correction: v.Number | None = None, keepdim: bool = False) -> Result:
    average, variance = moments(b, x, dims_of(x, dim), 1 if correction is None else correction, keepdim, b.dtype)
    return b.lazy(variance.size, b.dtype, alu(Op.SQRT, variance.body())), b.lazy(average.size, b.dtype, average.body())


@lowering("linalg_vector_norm")
def vector_norm(b: Builder, x: Tensor, ord: v.Number = 2, dim: Dims = None, keepdim: bool = False, dtype: object = None) -> Result:
    if isinstance(ord, sympy.Expr):
        return None  # 0 and the infinities are other sums: known at run time only
    dims = dims_of(x, dim)
    kind = b.dtype
    value = alu(Op.ABS, v.value_of(x, kind))

    def total(body: Value, op: ReduceOp = ReduceOp.SUM, finish: object = None) -> Tensor:
        return b.reduce(op, b.lazy(x.size, kind.compute, body), dims, kind, keepdim, finish=finish)  # type: ignore[arg-type]

    if ord in (math.inf, -math.inf):
        return total(value, ReduceOp.MAX if ord > 0 else ReduceOp.MIN) if not empty_sizes(x.size) else None
    if ord == 0:
        return total(tx.cast(v.ne(value, v.const(value, 0.0)), kind))
    if ord == 1:
        return total(value)
    if ord == 2:
        return total(v.mul(value, value), finish=lambda s: alu(Op.SQRT, s))
    powered = v.power(value, ord) or alu(Op.POW, value, v.const(value, float(ord)))
    return total(powered, finish=lambda s: alu(Op.POW, s, v.const(s, 1.0 / ord)))


@lowering("norm.Scalar", "norm.ScalarOpt_dim")
def norm(b: Builder, x: Tensor, p: float | None = 2, dim: Dims = None, keepdim: bool = False) -> Result:
    return vector_norm(b, x, 2 if p is None else p, dim, keepdim)


@lowering("logsumexp")
def logsumexp(b: Builder, x: Tensor, dims: Dims, keepdim: bool = False) -> Result:
    if empty_sizes(x.size):
        return None
    wanted, kind = dims_of(x, dims), b.dtype.compute
    x = b.settle(b.lazy(x.size, kind, v.value_of(x, kind)) if not x.dtype.is_float else x)
    top = b.reduce(ReduceOp.MAX, b.lazy(x.size, kind, x.body()), wanted, kind, True)
    peak = top.body()
    safe = v.where(v.eq(alu(Op.ABS, peak), v.const(peak, math.inf)), v.const(peak, 0.0), peak)
    shifted = v.exp(v.sub(v.value_of(x, kind), safe))
    total = b.reduce(ReduceOp.SUM, b.lazy(x.size, kind, shifted), wanted, kind, True)
    found = b.lazy(total.size, b.dtype, v.add(alu(Op.LOG, total.body()), safe))
    return found if keepdim else tx.reshape(found, b.size)


@lowering("dot", "vdot")
def dot(b: Builder, x: Tensor, y: Tensor) -> Result:
    return b.reduce(ReduceOp.SUM, b.lazy(x.size, b.dtype, v.mul(x.body(), y.body())), [0], b.dtype)
