"""Softmax and normalisation layers, kept whole: their parts are stored, and fused again by the scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor, alu
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Size, Value
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.ops.creation import empty_sizes
from precast.lowering.ops.reductions import mean_of, moments


@lowering("_safe_softmax")
def safe_softmax(b: Builder, x: Tensor, dim: int, *ignored: object, **more: object) -> Result:
    """Rows that are -inf throughout give 0 where softmax gives NaN."""
    return _softmax(b, x, dim, log=False, safe=True)


@lowering("_softmax", "softmax.int")
def softmax(b: Builder, x: Tensor, dim: int, *ignored: object) -> Result:
    return _softmax(b, x, dim, log=False)


@lowering("_log_softmax", "log_softmax.int")
def log_softmax(b: Builder, x: Tensor, dim: int, *ignored: object) -> Result:
    return _softmax(b, x, dim, log=True)


def _softmax(b: Builder, x: Tensor, dim: int, log: bool, safe: bool = False) -> Result:
    if not -max(x.rank, 1) <= dim < max(x.rank, 1):
        return None  # the library call raises eager's error
    if empty_sizes(x.size):
        return b.lazy(b.size, b.dtype, tx.constant(0, b.dtype))
    dims, kind = ([dim % x.rank] if x.rank else []), b.dtype.compute
    x = b.settle(x)
    value = v.value_of(x, kind)
    top = b.reduce(ReduceOp.MAX, b.lazy(x.size, kind, value), dims, kind, True)
    peak = top.body()
    nothing = v.eq(peak, v.const(peak, -math.inf))
    shifted = v.sub(value, v.where(nothing, v.const(peak, 0.0), peak) if safe else peak)
    powers = b.lazy(x.size, kind, v.exp(shifted))
    if log:
        total = b.reduce(ReduceOp.SUM, powers, dims, kind, True, finish=lambda s: alu(Op.LOG, s))
        return b.lazy(b.size, b.dtype, v.sub(shifted, total.body()))
    powers = powers if b.on_gpu else b.realise(powers)  # on a CPU an exponential costs more than its memory
    total = b.reduce(ReduceOp.SUM, powers, dims, kind, True)
    share = v.div(powers.body(), total.body())
    return b.lazy(b.size, b.dtype, v.where(nothing, v.const(share, 0.0), share) if safe else share)


def _affine(value: Value, weight: Value | None, bias: Value | None) -> Value:
    value = v.mul(value, weight) if weight is not None else value
    return v.add(value, bias) if bias is not None else value


def _inverse_deviation(variance: Value, eps: float) -> Value:
    return alu(Op.RSQRT, v.add(variance, v.const(variance, eps)))


@lowering("native_layer_norm")
def layer_norm(b: Builder, x: Tensor, normalized: Sequence[Size], weight: Tensor | None, bias: Tensor | None, eps: float) -> Result:
    """Returns the result, the mean and the reciprocal deviation (both in f32 or wider, as eager keeps them)."""
    if empty_sizes(x.size):
        return None
    dims = list(range(x.rank - len(normalized), x.rank))
    kind = x.dtype.compute
    x = b.settle(x)
    average, variance = moments(b, x, dims, 0, True, kind)
    inverse = _inverse_deviation(variance.body(), eps)
    scaled = v.mul(v.sub(x.body(), average.body()), inverse)
    scaled = _affine(scaled, None if weight is None else v.value_of(weight, kind), None if bias is None else v.value_of(bias, kind))
    _, mean_type, _ = b.dtypes
    return b.lazy(x.size, x.dtype, scaled), b.lazy(average.size, mean_type, average.body()), b.lazy(average.size, mean_type, inverse)


@lowering("_fused_rms_norm")
def rms_norm(b: Builder, x: Tensor, normalized: Sequence[Size], weight: Tensor | None, eps: float | None) -> Result:
    if empty_sizes(x.size):
        return None
    dims = list(range(x.rank - len(normalized), x.rank))
    kind = x.dtype.compute
    x = b.settle(x)
    value = x.body()
    small = v.torch_info(kind if eps is None else x.dtype).eps if eps is None else eps
    power = mean_of(b, b.lazy(x.size, kind, v.mul(value, value)), dims, True, kind)
    inverse = _inverse_deviation(power.body(), small)
    result = _affine(v.mul(value, inverse), None if weight is None else v.value_of(weight, kind), None)
    return b.lazy(x.size, b.dtypes[0], result), b.lazy(power.size, b.dtypes[1], inverse)


@lowering("native_group_norm")
def group_norm(
    b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Size, c: Size, area: Size, groups: int, eps: float
) -> Result:
    if empty_sizes(x.size):
        return None
    kind = x.dtype.compute
    grouped = tx.reshape(b.settle(x), (n, groups, ix.plain(c // groups), area))
    average, variance = moments(b, grouped, [2, 3], 0, True, kind)
    inverse = _inverse_deviation(variance.body(), eps)
    scaled = b.lazy(grouped.size, kind, v.mul(v.sub(grouped.body(), average.body()), inverse))

    def per_channel(t: Tensor | None) -> Value | None:
        return None if t is None else tx.cast(tx.reshape(t, (*t.size, *(1 for _ in x.size[2:]))).body(), kind)

    result = b.lazy(x.size, x.dtype, _affine(tx.reshape(scaled, x.size).body(), per_channel(weight), per_channel(bias)))
    flat = (n, groups)
    mean_type = b.dtypes[1]
    deviation = tx.reshape(b.lazy(average.size, mean_type, inverse), flat)
    return result, tx.reshape(b.lazy(average.size, mean_type, average.body()), flat), deviation


def _channels(t: Tensor, x: Tensor, kind: DType) -> Value:
    """A per-channel vector at the points of `x` ([N, C, ...])."""
    return tx.cast(tx.reshape(t, (*t.size, *(1 for _ in x.size[2:]))).body(), kind)


def _normalise(b: Builder, x: Tensor, mean: Tensor, variance: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """`x * scale + shift`, as eager's CPU kernel does it; both are small vectors computed once per channel.

    Statistics are per channel: of size [C].
    """
    kind = x.dtype.compute
    inverse = _inverse_deviation(v.value_of(variance, kind), eps)
    scale = b.realise(b.lazy(mean.size, kind, inverse if weight is None else v.mul(inverse, v.value_of(weight, kind))))
    down = v.neg(v.mul(v.value_of(mean, kind), scale.body()))
    shift = b.realise(b.lazy(mean.size, kind, down if bias is None else v.add(v.value_of(bias, kind), down)))
    return b.lazy(x.size, x.dtype, v.add(v.mul(x.body(), _channels(scale, x, kind)), _channels(shift, x, kind)))


@lowering("_native_batch_norm_legit_no_training")
def batch_norm_eval(
    b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> Result:
    empty = b.lazy((0,), b.dtypes[1], tx.constant(0.0, x.dtype))
    return _normalise(b, x, mean, variance, eps, weight, bias), empty, empty


@lowering("_native_batch_norm_legit_functional", "_native_batch_norm_legit.no_stats")
def batch_norm(b: Builder, x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: object) -> Result:
    """Training statistics, or the running ones; `functional` also returns the new running statistics."""
    mean, variance = (rest[0], rest[1]) if len(rest) == 5 else (None, None)
    training, momentum, eps = rest[-3:]
    assert isinstance(momentum, float | int) and isinstance(eps, float | int)
    kind = x.dtype.compute
    if empty_sizes(x.size):
        return None
    if not training:
        assert isinstance(mean, Tensor) and isinstance(variance, Tensor)
        empty = b.lazy((0,), b.dtypes[1], tx.constant(0.0, kind))
        result = _normalise(b, x, mean, variance, eps, weight, bias)
        return (result, empty, empty, mean, variance) if len(rest) == 5 else (result, empty, empty)
    x = b.settle(x)
    dims = [d for d in range(x.rank) if d != 1]
    average, spread = moments(b, x, dims, 0, True, kind)
    flat = tx.reshape(average, (x.size[1],))
    inverse_flat = b.lazy(flat.size, b.dtypes[2], _inverse_deviation(tx.reshape(spread, flat.size).body(), eps))
    result = _normalise(b, x, flat, tx.reshape(spread, flat.size), eps, weight, bias)
    saved = b.lazy(flat.size, b.dtypes[1], flat.body())
    if len(rest) != 5:
        return result, saved, inverse_flat
    assert isinstance(mean, Tensor) and isinstance(variance, Tensor)
    points = ix.numel(x.size[d] for d in dims)
    unbias = v.div(v.number(points, kind), v.number(ix.plain(points - 1), kind))
    fresh = v.mul(tx.reshape(spread, flat.size).body(), unbias)
    return result, saved, inverse_flat, _running(b, mean, flat.body(), momentum), _running(b, variance, fresh, momentum)


def _running(b: Builder, old: Tensor, fresh: Value, momentum: float) -> Tensor:
    value = old.body()
    mixed = v.add(v.mul(tx.cast(fresh, old.dtype.compute), v.const(value, momentum)), v.mul(value, v.const(value, 1.0 - momentum)))
    return b.lazy(old.size, old.dtype, mixed)
