"""Random numbers of precast's own, where `options["fallback_random"]` is off: each element is a Philox number of its position and of a key.

One call of torch's generator draws the keys of all the graph's operators, so that `manual_seed` repeats them and CUDA graphs draw afresh;
the numbers are computed where they are used, on any target from the same bits. By default every rule here declines: torch's own operators
draw, and the numbers are eager's.
"""

from __future__ import annotations

import math
from typing import Any

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.float_values import is_real
from precast.lowering.build.lazy_tensor import Tensor, alu, compare, constant
from precast.lowering.build.registry import Result, lowering
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Index, Value
from precast.lowering.ir.scalars import DType, Op

DIGITS = {DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""Binary digits of a fraction: as many as each type holds, so that none is rounded up to 1."""


def bits(b: Builder, key: Value, draws: int = 1, draw: int = 0) -> Value:
    """32 random bits (I64, not negative) for each element of the node's result: the `draw`-th of `draws`."""
    size = b.size
    place = ix.affine(0, tuple(zip(ix.contiguous_strides(size), ix.symbols(len(size)), strict=True)))
    place = place.subs({s: 0 for s, n in zip(ix.symbols(len(size)), size, strict=True) if n == 1})
    return alu(Op.PHILOX, key, Index(sympy.Integer(draws) * place + draw))


def fraction(b: Builder, key: Value, dtype: DType, above: int = 0, draws: int = 1, draw: int = 0) -> Value:
    """A multiple of 2^-digits in [0, 1), with `above` 1 in (0, 1], as `dtype`'s arithmetic has it; F64 takes two numbers, for 53 digits."""
    if dtype is not DType.F64:
        digits = DIGITS[dtype]
        whole = alu(Op.SHR, bits(b, key, draws, draw), constant(32 - digits, DType.I64))
    else:
        digits = 53
        high, low = (bits(b, key, 2 * draws, 2 * draw + n) for n in range(2))
        high = alu(Op.MUL, alu(Op.SHR, high, constant(5, DType.I64)), constant(1 << 26, DType.I64))
        whole = alu(Op.ADD, high, alu(Op.SHR, low, constant(6, DType.I64)))
    if above:
        whole = alu(Op.ADD, whole, constant(above, DType.I64))
    return alu(Op.MUL, tx.cast(whole, dtype), constant(2.0**-digits, dtype.compute))


@lowering("rand", "rand_like")
def rand(b: Builder, *ignored: object, **more: object) -> Result:
    key = b.random_key()
    return None if key is None else v.lazy(b, fraction(b, key, b.dtype))


@lowering("uniform")
def uniform(b: Builder, like: Tensor, low: v.Number = 0.0, high: v.Number = 1.0, **more: object) -> Result:
    """[low, high): what is rounded up to `high` becomes `low`, as in eager on a GPU."""
    if is_real(low) or is_real(high) or more.get("generator") is not None or not float(low) <= float(high):
        return None
    key = b.random_key()
    if key is None:
        return None
    compute = b.dtype.compute
    first, last = (v.scalar_in(float(n), b.dtype) for n in (low, high))
    drawn = alu(Op.ADD, alu(Op.MUL, fraction(b, key, compute), constant(float(high) - float(low), compute)), first)
    drawn = tx.rounded(drawn, b.dtype)
    return v.lazy(b, alu(Op.WHERE, compare(Op.EQ, drawn, last), first, drawn))


def normal(b: Builder, key: Value) -> Value:
    """By Box and Muller's transform; half types are drawn in float32."""
    compute = b.dtype.compute
    first, second = fraction(b, key, compute, 1, 2, 0), fraction(b, key, compute, 0, 2, 1)
    radius = alu(Op.SQRT, alu(Op.MUL, constant(-2.0, compute), alu(Op.LOG, first)))
    return alu(Op.MUL, radius, alu(Op.COS, alu(Op.MUL, constant(2 * math.pi, compute), second)))


@lowering("randn", "randn_like")
def randn(b: Builder, *ignored: object, **more: object) -> Result:
    key = b.random_key()
    return None if key is None else v.lazy(b, normal(b, key))


@lowering("normal_functional")
def normal_functional(b: Builder, like: Tensor, mean: v.Number = 0.0, std: v.Number = 1.0, **more: object) -> Result:
    key = None if is_real(mean) or is_real(std) or more.get("generator") is not None else b.random_key()
    if key is None:
        return None
    compute = b.dtype.compute
    return v.lazy(b, alu(Op.ADD, alu(Op.MUL, normal(b, key), constant(float(std), compute)), constant(float(mean), compute)))


@lowering("bernoulli", "bernoulli.p")
def bernoulli(b: Builder, x: Tensor, p: Any = None, **more: object) -> Result:
    """1 with the chance `p`, or that of each element, which is not checked."""
    if not (b.dtype.is_float or p is not None) or is_real(p) or more.get("generator") is not None:
        return None
    if p is not None and not 0 <= float(p) <= 1:
        return None
    key = b.random_key()
    if key is None:
        return None
    kind = DType.F64 if p is None and x.dtype is DType.F64 else DType.F32
    chance = constant(float(p), kind) if p is not None else v.value_of(x, kind)
    return v.lazy(b, tx.cast(compare(Op.LT, fraction(b, key, kind), chance), b.dtype))


@lowering("native_dropout")
def native_dropout(b: Builder, x: Tensor, p: v.Number, train: bool | None = None) -> Result:
    """What is kept is divided by its share; and which elements those are."""
    if train is False or is_real(p) or not 0 <= float(p) <= 1 or not x.dtype.is_float:
        return None
    key = b.random_key()
    if key is None:
        return None
    share = 1.0 - float(p)
    kept = compare(Op.LT, fraction(b, key, DType.F32), constant(share, DType.F32))
    compute = b.dtype.compute
    scale = constant(1.0 / share if share else 0.0, compute)
    result = alu(Op.MUL, alu(Op.MUL, v.value_of(x, x.dtype), tx.cast(kept, compute)), scale)
    return v.lazy(b, result), b.lazy(b.size, DType.BOOL, kept)
