"""Scalar expressions over `Value`: what the tables of pointwise ops are written in."""

from __future__ import annotations

import math
from typing import Any

import sympy
import torch

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.bool_values import is_truth, truth_value
from precast.lowering.build.builder import Builder
from precast.lowering.build.float_values import is_real, real_value
from precast.lowering.build.lazy_tensor import Tensor, alu, compare, constant
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Const, Index, Size, Value
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.sympy_calls import cannot_wrap
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES, dtype_of

Number = bool | int | float | sympy.Expr
Operand = Tensor | Number

_CATEGORY = {DType.BOOL: 0, DType.U8: 1, DType.I8: 1, DType.I16: 1, DType.I32: 1, DType.I64: 1}
TRUE = Const(True, DType.BOOL)


def promote(*operands: Operand) -> DType:
    """The common type of operands by torch's rules: tensors with dimensions first, then 0-d tensors, then numbers."""
    result: DType | None = None
    ranks: list[list[DType]] = [[], [], []]
    for o in operands:
        if isinstance(o, Tensor):
            ranks[0 if o.rank else 1].append(o.dtype)
        elif isinstance(o, bool) or is_truth(o):
            ranks[2].append(DType.BOOL)
        else:
            ranks[2].append(DType.F32 if isinstance(o, float) or is_real(o) else DType.I64)
    for group in ranks:
        if not group:
            continue
        best = group[0]
        for d in group[1:]:
            best = dtype_of(torch.promote_types(TORCH_DTYPES[best], TORCH_DTYPES[d]))
        if result is None or _CATEGORY.get(best, 2) > _CATEGORY.get(result, 2):
            result = best
    assert result is not None
    return result


def number(value: Number, dtype: DType) -> Value:
    """A number of the graph in `dtype`'s arithmetic."""
    if is_truth(value):
        return tx.cast(truth_value(value), dtype)
    if isinstance(value, sympy.Expr):
        return tx.cast(real_value(value) if is_real(value) else Index(value), dtype)
    return constant(value, dtype)


def scalar_in(value: Number, dtype: DType) -> Value:
    """A number as a 0-d tensor of `dtype` would hold it: half types round it."""
    if isinstance(value, sympy.Basic):
        return tx.rounded(number(value, dtype), dtype)
    if dtype.compute is dtype:
        return number(value, dtype)
    return constant(torch.tensor(value, dtype=TORCH_DTYPES[dtype]).item(), dtype)


def fits(value: Operand, dtype: DType) -> bool:
    """Whether eager writes the number into memory of that type; one that is too large it refuses, an infinity only for integers."""
    if not isinstance(value, bool | int | float) or not (dtype.is_float or dtype.is_int):
        return True
    if dtype.is_float:
        return not math.isfinite(value) or abs(value) <= torch_info(dtype).max
    limits = torch.iinfo(TORCH_DTYPES[dtype])
    lowest = -limits.max if dtype is DType.U8 and isinstance(value, int) else limits.min  # integers wrap below 0
    return bool(math.isfinite(value) and lowest <= value <= limits.max)


def is_in_range(value: Operand, dtype: DType) -> bool:
    """Whether an integer type holds the very number: none is known of one that varies, but for 64 bits."""
    if not dtype.is_int or isinstance(value, Tensor):
        return True
    limits = torch.iinfo(TORCH_DTYPES[dtype])
    return limits.min <= value <= limits.max if isinstance(value, bool | int | float) else dtype is DType.I64


def value_of(operand: Operand, dtype: DType) -> Value:
    """An operand's body, converted to `dtype`'s arithmetic type."""
    return tx.cast(operand.body(), dtype) if isinstance(operand, Tensor) else number(operand, dtype)


def exact(operand: Operand, dtype: DType) -> Value:
    """Like `value_of`, but rounded as eager's memory would be: for discontinuous operations."""
    if isinstance(operand, Tensor):
        return tx.cast(tx.rounded(operand.body(), operand.dtype), dtype)
    return scalar_in(operand, dtype)


def const(like: Value, value: Any) -> Value:
    """A number, symbolic ones too, in the arithmetic type of `like`."""
    return number(value, like.dtype.compute)


def is_const(value: Value, number: float) -> bool:
    return isinstance(value, Const) and not isinstance(value.value, bool) and value.value == number


def _position(a: Value) -> sympy.Expr | None:
    """The I64 value as an index expression, where it is one."""
    if isinstance(a, Index) and a.dtype is DType.I64:
        return a.expr if cannot_wrap(a.expr) else None
    found = sympy.Integer(a.value) if isinstance(a, Const) and a.dtype is DType.I64 else None
    return found if found is not None and cannot_wrap(found) else None


def _positions(a: Value, b: Value) -> tuple[sympy.Expr, sympy.Expr] | None:
    """Both as index expressions, where at least one depends on position: arithmetic on positions stays symbolic."""
    if not (isinstance(a, Index) or isinstance(b, Index)):
        return None
    left, right = _position(a), _position(b)
    return (left, right) if left is not None and right is not None else None


def add(a: Value, b: Value) -> Value:
    both = _positions(a, b)
    if both is not None:
        return Index(both[0] + both[1])
    return alu(Op.OR if a.dtype is DType.BOOL else Op.ADD, a, b)


def sub(a: Value, b: Value) -> Value:
    both = _positions(a, b)
    if both is not None:
        return Index(both[0] - both[1])
    return alu(Op.SUB, a, b)


def mul(a: Value, b: Value) -> Value:
    if is_const(b, 1):
        return a
    both = _positions(a, b)
    if both is not None and (both[0].is_Integer or both[1].is_Integer):
        return Index(ix.expand(both[0] * both[1]))
    return alu(Op.AND if a.dtype is DType.BOOL else Op.MUL, a, b)


def div(a: Value, b: Value) -> Value:
    return alu(Op.DIV, a, b)


def neg(a: Value) -> Value:
    return alu(Op.NEG, a)


def conjunction(a: Value, b: Value) -> Value:
    """Bitwise and: logical on BOOL."""
    return both(a, b) if a.dtype is DType.BOOL else alu(Op.AND, a, b)


def disjunction(a: Value, b: Value) -> Value:
    """Bitwise or: logical on BOOL."""
    return either(a, b) if a.dtype is DType.BOOL else alu(Op.OR, a, b)


def minimum(a: Value, b: Value) -> Value:
    return alu(Op.AND if a.dtype is DType.BOOL else Op.MIN, a, b)


def maximum(a: Value, b: Value) -> Value:
    return alu(Op.OR if a.dtype is DType.BOOL else Op.MAX, a, b)


def where(mask: Value, a: Value, b: Value) -> Value:
    if isinstance(mask, Const):
        return a if mask.value else b
    return a if a is b else alu(Op.WHERE, mask, a, b)


def lt(a: Value, b: Value) -> Value:
    both = _positions(a, b)
    if both is not None and (both[1] - both[0]).is_positive:
        return TRUE
    return compare(Op.LT, a, b)


def le(a: Value, b: Value) -> Value:
    both = _positions(a, b)
    if both is not None and (both[1] - both[0]).is_nonnegative:
        return TRUE
    return compare(Op.LE, a, b)


def gt(a: Value, b: Value) -> Value:
    return compare(Op.LT, b, a)


def ge(a: Value, b: Value) -> Value:
    return compare(Op.LE, b, a)


def eq(a: Value, b: Value) -> Value:
    return compare(Op.EQ, a, b)


def ne(a: Value, b: Value) -> Value:
    return compare(Op.NE, a, b)


def both(a: Value, b: Value) -> Value:
    """`a and b` on BOOL."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return y if x.value else x
    return alu(Op.AND, a, b)


def either(a: Value, b: Value) -> Value:
    """`a or b` on BOOL."""
    for x, y in ((a, b), (b, a)):
        if isinstance(x, Const):
            return x if x.value else y
    return alu(Op.OR, a, b)


def invert(a: Value) -> Value:
    return alu(Op.NOT, a)


def truth(a: Value) -> Value:
    return tx.cast(a, DType.BOOL)


def exp(a: Value) -> Value:
    return alu(Op.EXP, a)


def isnan(a: Value) -> Value:
    return compare(Op.ISNAN, a)


def sigmoid(x: Value) -> Value:
    return div(const(x, 1.0), add(const(x, 1.0), exp(neg(x))))


def softplus(x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
    scaled = mul(x, const(x, beta))
    soft = div(alu(Op.LOG1P, exp(scaled)), const(x, beta)) if beta != 1 else alu(Op.LOG1P, exp(scaled))
    return where(gt(scaled, const(x, threshold)), x, soft)


def gelu(x: Value) -> Value:
    return mul(mul(x, const(x, 0.5)), add(alu(Op.ERF, mul(x, const(x, math.sqrt(0.5)))), const(x, 1.0)))


def gelu_tanh(x: Value) -> Value:
    """`x * sigmoid(2u)`, equal to `x/2 * (1 + tanh(u))` and cheaper where tanh is slow."""
    cube = mul(mul(x, x), x)
    u2 = mul(add(x, mul(cube, const(x, 0.044715))), const(x, 2 * math.sqrt(2 / math.pi)))
    return div(x, add(const(x, 1.0), exp(neg(u2))))


def clamp(x: Value, low: Value | None, high: Value | None) -> Value:
    x = maximum(x, low) if low is not None else x
    return minimum(x, high) if high is not None else x


def power(x: Value, exponent: Number) -> Value | None:
    """`x ** exponent` for the exponents that eager computes without `pow`."""
    if x.dtype.compute.is_float and not isinstance(exponent, sympy.Expr):
        if exponent == 0.5:
            return alu(Op.SQRT, x)
        if exponent == -0.5:
            return alu(Op.RSQRT, x)
        if exponent == -1:
            return div(const(x, 1.0), x)
        if exponent == -2:
            return div(const(x, 1.0), mul(x, x))
    if exponent == 1:
        return x
    if exponent == 2:
        return mul(x, x)
    if exponent == 3:
        return mul(mul(x, x), x)
    return None


def lazy(b: Builder, value: Value, size: tuple[Size, ...] | None = None, dtype: DType | None = None) -> Tensor:
    """The node's result by its body."""
    return b.lazy(b.size if size is None else size, b.dtype if dtype is None else dtype, value)


def torch_info(dtype: DType) -> torch.finfo:
    return torch.finfo(TORCH_DTYPES[dtype])
