"""Running sums, products and extremes along one dimension."""

from __future__ import annotations

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, Scan, Store
from precast.lowering.ir.scalars import DType, ReduceOp
from precast.lowering.ops.creation import empty_sizes


def _is_librarys(b: Builder, x: Tensor, dim: int) -> bool:
    length = x.size[dim] if x.rank else 1
    alone = all(n == 1 for d, n in enumerate(x.size) if d != dim)
    return b.library_scan is not None and alone and isinstance(length, int) and length >= b.library_scan


def _accumulated(b: Builder, op: ReduceOp, x: Tensor, dim: int) -> Result:
    dim %= max(x.rank, 1)
    if b.dtype is DType.BOOL or _is_librarys(b, x, dim):
        return None
    return scan(b, op, x, dim, b.output())


def scan(b: Builder, op: ReduceOp, x: Tensor, dim: int, out: Tensor) -> Tensor:
    """Writes the inclusive scan of `x` along `dim` into `out`, a whole buffer."""
    if empty_sizes(x.size):
        b.store(out, x)
        return out
    if x.rank == 0 or x.size[dim] == 1:
        none = op in (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
        b.store(out, b.lazy(x.size, out.dtype, tx.constant(0, out.dtype) if none else x.body()))
        return out
    names = ix.symbols(x.rank)
    axes = {d: Axis(names[d], n) for d, n in enumerate(x.size) if n != 1}
    value = x.body()
    kind = out.dtype.compute
    if op in (ReduceOp.SUM, ReduceOp.PROD):
        value = tx.cast(value, out.dtype)
    running = Scan(op, value, axes[dim], kind)
    assert out.window is not None
    terms = tuple((out.window.stride[d], names[d]) for d in axes)
    b.kernel(tuple(axes.values()), Store(out.window.buffer, ix.affine(out.window.offset, terms), running))
    return out


@lowering("cumsum")
def cumsum(b: Builder, x: Tensor, dim: int, *, dtype: object = None) -> Result:
    return _accumulated(b, ReduceOp.SUM, x, dim)


@lowering("cumprod")
def cumprod(b: Builder, x: Tensor, dim: int, *, dtype: object = None) -> Result:
    return _accumulated(b, ReduceOp.PROD, x, dim)


@lowering("logcumsumexp")
def logcumsumexp(b: Builder, x: Tensor, dim: int) -> Result:
    """On a CPU the library's: there each step of a row waits for the logarithm before it, whoever computes it."""
    if not b.on_gpu or not x.dtype.is_float or _is_librarys(b, x, dim % max(x.rank, 1)):
        return None
    return scan(b, ReduceOp.LOGSUMEXP, x, dim % max(x.rank, 1), b.output())


def _extremes(b: Builder, x: Tensor, dim: int, op: ReduceOp, arg: ReduceOp) -> Result:
    if x.dtype is DType.BOOL:
        return None
    x, dim = b.settle(x), dim % max(x.rank, 1)
    which = ((op, 0), (arg, 1))
    first, second = (scan(b, one, x, dim, b.output(position)) if b.is_used(position) else None for one, position in which)
    return first, second


lowering("cummax")(lambda b, x, dim: _extremes(b, x, dim, ReduceOp.MAX, ReduceOp.ARGMAX))
lowering("cummin")(lambda b, x, dim: _extremes(b, x, dim, ReduceOp.MIN, ReduceOp.ARGMIN))
