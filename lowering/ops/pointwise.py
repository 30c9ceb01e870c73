"""Pointwise ops: one row an op. Operands are converted to the result's arithmetic type, then the row's expression is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.float8 import decoded
from precast.lowering.build.lazy_tensor import Tensor, alu, compare
from precast.lowering.build.registry import Result, lowering
from precast.lowering.build.scalar_exprs import Number, Operand, const
from precast.lowering.ir.nodes import Const, Value
from precast.lowering.ir.scalars import HELD_BY_HALVES, DType, Op


def _same(op: Op) -> Callable[..., Value]:
    return lambda *args: alu(op, *args)


def _tests(op: Op) -> Callable[..., Value]:
    return lambda x: compare(op, x)


def _integral(op: Op) -> Callable[[Value], Value]:
    """Rounding: nothing to do on integers."""
    return lambda x: alu(op, x) if x.dtype.compute.is_float else x


def _sign(x: Value) -> Value:
    if x.dtype is DType.BOOL:
        return x
    zero, one = const(x, 0), const(x, 1)
    if x.dtype is DType.U8:
        return v.where(v.gt(x, zero), one, zero)
    return v.where(v.gt(x, zero), one, v.where(v.lt(x, zero), const(x, -1), zero))


def _logaddexp(a: Value, b: Value) -> Value:
    high, low = v.maximum(a, b), v.minimum(a, b)
    same = v.eq(a, b)  # also for equal infinities, whose difference is NaN
    soft = v.add(high, alu(Op.LOG1P, v.exp(v.sub(low, high))))
    return v.where(same, v.add(a, const(a, math.log(2.0))), soft)


def _logaddexp2(a: Value, b: Value) -> Value:
    high, low = v.maximum(a, b), v.minimum(a, b)
    soft = v.add(high, v.mul(alu(Op.LOG1P, alu(Op.EXP2, v.sub(low, high))), const(a, 1 / math.log(2.0))))
    return v.where(v.eq(a, b), v.add(a, const(a, 1.0)), soft)


def _xlogy(a: Value, b: Value, log: Op = Op.LOG) -> Value:
    product = v.where(v.eq(a, const(a, 0.0)), const(a, 0.0), v.mul(a, alu(log, b)))
    return v.where(v.isnan(b), const(a, math.nan), product)


def _fmax(a: Value, b: Value, pick: Callable[[Value, Value], Value] = v.maximum) -> Value:
    if not a.dtype.compute.is_float:
        return pick(a, b)
    return v.where(v.isnan(a), b, v.where(v.isnan(b), a, pick(a, b)))


def _heaviside(x: Value, at_zero: Value) -> Value:
    zero = const(x, 0)
    return v.where(v.eq(x, zero), at_zero, tx.cast(v.gt(x, zero), x.dtype))


def _log_sigmoid(x: Value) -> Value:
    return v.sub(v.minimum(x, const(x, 0.0)), alu(Op.LOG1P, v.exp(v.neg(alu(Op.ABS, x)))))


def _hardsigmoid(x: Value) -> Value:
    return v.div(v.clamp(v.add(x, const(x, 3.0)), const(x, 0.0), const(x, 6.0)), const(x, 6.0))


def _sinc(x: Value) -> Value:
    angle = v.mul(x, const(x, math.pi))
    return v.where(v.eq(x, const(x, 0.0)), const(x, 1.0), v.div(alu(Op.SIN, angle), angle))


def _entr(x: Value) -> Value:
    zero = const(x, 0.0)
    low = v.where(v.eq(x, zero), zero, const(x, -math.inf))
    return v.where(v.isnan(x), x, v.where(v.gt(x, zero), v.neg(v.mul(x, alu(Op.LOG, x))), low))


ROWS: dict[str, Callable[..., Value]] = {
    # one operand
    "neg": _same(Op.NEG),
    "exp": _same(Op.EXP),
    "exp2": _same(Op.EXP2),
    "expm1": _same(Op.EXPM1),
    "log": _same(Op.LOG),
    "log2": _same(Op.LOG2),
    "log10": _same(Op.LOG10),
    "log1p": _same(Op.LOG1P),
    "sqrt": _same(Op.SQRT),
    "rsqrt": _same(Op.RSQRT),
    "sin": _same(Op.SIN),
    "cos": _same(Op.COS),
    "tan": _same(Op.TAN),
    "asin": _same(Op.ASIN),
    "acos": _same(Op.ACOS),
    "atan": _same(Op.ATAN),
    "sinh": _same(Op.SINH),
    "cosh": _same(Op.COSH),
    "tanh": _same(Op.TANH),
    "asinh": _same(Op.ASINH),
    "acosh": _same(Op.ACOSH),
    "atanh": _same(Op.ATANH),
    "erf": _same(Op.ERF),
    "erfc": _same(Op.ERFC),
    "lgamma": _same(Op.LGAMMA),
    "special_entr": _entr,
    "sinc": _sinc,
    "reciprocal": lambda x: v.div(const(x, 1.0), x),
    "sigmoid": v.sigmoid,
    "relu": lambda x: v.maximum(x, const(x, 0)),
    "relu6": lambda x: v.clamp(x, const(x, 0), const(x, 6)),
    "silu": lambda x: v.div(x, v.add(const(x, 1.0), v.exp(v.neg(x)))),
    "mish": lambda x: v.mul(x, alu(Op.TANH, v.softplus(x))),
    "hardsigmoid": _hardsigmoid,
    "hardswish": lambda x: v.mul(x, _hardsigmoid(x)),
    "square": lambda x: v.mul(x, x),
    "deg2rad": lambda x: v.mul(x, const(x, math.pi / 180)),
    "rad2deg": lambda x: v.mul(x, const(x, 180 / math.pi)),
    "abs": lambda x: x if x.dtype.compute in (DType.BOOL, DType.U8) else alu(Op.ABS, x),
    "bitwise_not": _same(Op.NOT),
    "positive": lambda x: x,
    # two operands
    "maximum": v.maximum,
    "minimum": v.minimum,
    "fmax": _fmax,
    "fmin": lambda a, b: _fmax(a, b, v.minimum),
    "atan2": _same(Op.ATAN2),
    "hypot": _same(Op.HYPOT),
    "copysign.Tensor": _same(Op.COPYSIGN),
    "copysign.Scalar": _same(Op.COPYSIGN),
    "nextafter": _same(Op.NEXTAFTER),
    "logaddexp": _logaddexp,
    "logaddexp2": _logaddexp2,
    "xlogy.Tensor": _xlogy,
    "xlogy.Scalar_Self": _xlogy,
    "xlogy.Scalar_Other": _xlogy,
    "special_xlog1py": lambda a, b: _xlogy(a, b, Op.LOG1P),
    "special_xlog1py.self_scalar": lambda a, b: _xlogy(a, b, Op.LOG1P),
    "special_xlog1py.other_scalar": lambda a, b: _xlogy(a, b, Op.LOG1P),
    "_prelu_kernel": lambda x, w: v.where(v.gt(x, const(x, 0.0)), x, v.mul(w, x)),
    "mul.Tensor": v.mul,
    "mul.Scalar": v.mul,
    "div.Tensor": v.div,
    "div.Scalar": v.div,
}
ROWS |= {
    f"bitwise_{n}.{o}": op
    for n, op in (("and", v.conjunction), ("or", v.disjunction), ("xor", _same(Op.XOR)))
    for o in ("Tensor", "Scalar", "Scalar_Tensor")
}
ROWS |= {
    f"bitwise_{n}_shift.{o}": _same(op)
    for n, op in (("left", Op.SHL), ("right", Op.SHR))
    for o in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")
}
ROWS |= {f"__{n}__.{o}": _same(op) for n, op in (("lshift", Op.SHL), ("rshift", Op.SHR)) for o in ("Tensor", "Scalar")}

JUMPS: dict[str, Callable[..., Value]] = {
    "floor": _integral(Op.FLOOR),
    "ceil": _integral(Op.CEIL),
    "trunc": _integral(Op.TRUNC),
    "round": _integral(Op.ROUND),
    "frac": lambda x: v.sub(x, alu(Op.TRUNC, x)),
    "sign": _sign,
    "sgn": _sign,
    "heaviside": _heaviside,
    "remainder.Tensor": _same(Op.MOD),
    "remainder.Scalar": _same(Op.MOD),
    "remainder.Scalar_Tensor": _same(Op.MOD),
    "fmod.Tensor": _same(Op.REM),
    "fmod.Scalar": _same(Op.REM),
    "floor_divide": _same(Op.FLOORDIV),
    "floor_divide.Scalar": _same(Op.FLOORDIV),
}
"""Like `ROWS`, but operands of half types are rounded first: a small difference before them would be a large one after."""

COMPARISONS: dict[str, Callable[[Value, Value], Value]] = {"eq": v.eq, "ne": v.ne, "lt": v.lt, "le": v.le, "gt": v.gt, "ge": v.ge}
LOGIC: dict[str, Callable[..., Value]] = {
    "logical_and": v.both,
    "logical_or": v.either,
    "logical_xor": _same(Op.XOR),
    "logical_not": v.invert,
}
TESTS: dict[str, Callable[[Value], Value]] = {
    "isnan": _tests(Op.ISNAN),
    "isinf": _tests(Op.ISINF),
    "signbit": lambda x: compare(Op.SIGNBIT, x) if x.dtype.compute.is_float else v.lt(x, const(x, 0)),
    "isposinf": lambda x: v.eq(x, const(x, math.inf)),
    "isneginf": lambda x: v.eq(x, const(x, -math.inf)),
}


def _register() -> None:
    for table, read in ((ROWS, v.value_of), (JUMPS, v.exact)):
        for name, row in table.items():

            def rule(b: Builder, *operands: Operand, _row: Callable[..., Value] = row, _read: Any = read) -> Result:
                return v.lazy(b, _row(*(_read(o, b.dtype) for o in operands)))

            lowering(name)(rule)
    for name, row in COMPARISONS.items():

        def comparison(b: Builder, x: Operand, y: Operand, _row: Callable[..., Value] = row) -> Result:
            common = v.promote(x, y)
            return v.lazy(b, _row(v.exact(x, common), v.exact(y, common)))

        lowering(f"{name}.Tensor", f"{name}.Scalar")(comparison)
    for name, row in LOGIC.items():

        def logic(b: Builder, *operands: Tensor, _row: Callable[..., Value] = row) -> Result:
            return v.lazy(b, _row(*(v.truth(tx.rounded(o.body(), o.dtype)) for o in operands)))

        lowering(name)(logic)
    for name, row in TESTS.items():

        def test(b: Builder, x: Tensor, _row: Callable[..., Value] = row, _name: str = name) -> Result:
            value = tx.rounded(x.body(), x.dtype)
            if not x.dtype.is_float and _name != "signbit" or x.dtype is DType.BOOL:
                return v.lazy(b, tx.constant(False, DType.BOOL))
            return v.lazy(b, _row(value))

        lowering(name)(test)


_register()


@lowering("add.Tensor", "add.Scalar")
def add(b: Builder, x: Operand, y: Operand, alpha: Number = 1) -> Result:
    return v.lazy(
        b, v.add(v.value_of(x, b.dtype), v.mul(v.value_of(y, b.dtype), v.number(alpha, b.dtype)) if alpha != 1 else v.value_of(y, b.dtype))
    )


@lowering("sub.Tensor", "sub.Scalar")
def sub(b: Builder, x: Operand, y: Operand, alpha: Number = 1) -> Result:
    right = v.value_of(y, b.dtype)
    return v.lazy(b, v.sub(v.value_of(x, b.dtype), right if alpha == 1 else v.mul(right, v.number(alpha, b.dtype))))


@lowering("rsub.Tensor", "rsub.Scalar")
def rsub(b: Builder, x: Operand, y: Operand, alpha: Number = 1) -> Result:
    return sub(b, y, x, alpha)


@lowering("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> Result:
    if rounding_mode is None:
        return v.lazy(b, v.div(v.value_of(x, b.dtype), v.value_of(y, b.dtype)))
    op = Op.FLOORDIV if rounding_mode == "floor" else Op.TRUNCDIV
    return v.lazy(b, alu(op, v.exact(x, b.dtype), v.exact(y, b.dtype)))


@lowering("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(b: Builder, x: Operand, exponent: Operand) -> Result:
    base = v.value_of(x, b.dtype)
    if not isinstance(exponent, Tensor):
        if not b.dtype.is_float and (isinstance(exponent, sympy.Expr) or exponent < 0):
            return None  # an error for integers below 0
        if exponent == 0:
            return v.lazy(b, const(base, 1))
        simple = v.power(base, exponent)
        if simple is not None:
            return v.lazy(b, simple)
    if b.dtype is DType.BOOL:
        return None
    return v.lazy(b, alu(Op.POW, base, v.value_of(exponent, b.dtype)))


@lowering("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(b: Builder, condition: Tensor, x: Operand, y: Operand) -> Result:
    return v.lazy(b, v.where(v.truth(condition.body()), v.value_of(x, b.dtype), v.value_of(y, b.dtype)))


@lowering("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, x: Tensor, mask: Tensor, value: Operand) -> Result:
    if not v.fits(value, b.dtype):
        return None
    return v.lazy(b, v.where(v.truth(mask.body()), v.value_of(value, b.dtype), v.value_of(x, b.dtype)))


@lowering("clamp", "clamp.Tensor")
def clamp(b: Builder, x: Tensor, low: Operand | None = None, high: Operand | None = None) -> Result:
    if not all(bound is None or v.fits(bound, b.dtype) and v.is_in_range(bound, b.dtype) for bound in (low, high)):
        return None  # torch refuses it, wraps it or goes by its value, each in some release

    def limit(bound: Operand | None) -> Value | None:
        return None if bound is None else v.value_of(bound, b.dtype)

    return v.lazy(b, v.clamp(v.value_of(x, b.dtype), limit(low), limit(high)))


lowering("hardtanh")(lambda b, x, low=-1, high=1: clamp(b, x, low, high))
lowering("clamp_min", "clamp_min.Tensor")(lambda b, x, low: clamp(b, x, low, None))
lowering("clamp_max", "clamp_max.Tensor")(lambda b, x, high: clamp(b, x, None, high))


@lowering("lerp.Scalar", "lerp.Tensor")
def lerp(b: Builder, start: Tensor, end: Tensor, weight: Operand) -> Result:
    """Both of eager's forms: from the end for weights of a half and more, so that weight 1 gives `end` exactly."""
    a, z, w = (v.value_of(o, b.dtype) for o in (start, end, weight))
    span = v.sub(z, a)
    near = v.add(a, v.mul(w, span))
    far = v.sub(z, v.mul(span, v.sub(const(w, 1.0), w)))
    if not isinstance(weight, Tensor):
        return v.lazy(b, near if abs(float(weight)) < 0.5 else far)
    return v.lazy(b, v.where(v.lt(alu(Op.ABS, w), const(w, 0.5)), near, far))


@lowering("addcmul")
def addcmul(b: Builder, x: Tensor, first: Tensor, second: Tensor, value: Number = 1) -> Result:
    product = v.mul(v.value_of(first, b.dtype), v.value_of(second, b.dtype))
    return v.lazy(b, v.add(v.value_of(x, b.dtype), product if value == 1 else v.mul(product, v.number(value, b.dtype))))


@lowering("addcdiv")
def addcdiv(b: Builder, x: Tensor, first: Tensor, second: Tensor, value: Number = 1) -> Result:
    top = v.value_of(first, b.dtype)
    top = top if value == 1 else v.mul(top, v.number(value, b.dtype))
    return v.lazy(b, v.add(v.value_of(x, b.dtype), v.div(top, v.value_of(second, b.dtype))))


@lowering("gelu")
def gelu(b: Builder, x: Tensor, approximate: str = "none") -> Result:
    return v.lazy(b, (v.gelu_tanh if approximate == "tanh" else v.gelu)(v.value_of(x, b.dtype)))


@lowering("leaky_relu")
def leaky_relu(b: Builder, x: Tensor, negative_slope: float = 0.01) -> Result:
    value = v.value_of(x, b.dtype)
    return v.lazy(b, v.where(v.gt(value, const(value, 0.0)), value, v.mul(value, const(value, negative_slope))))


@lowering("elu")
def elu(b: Builder, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Result:
    value = v.value_of(x, b.dtype)
    low = v.mul(alu(Op.EXPM1, v.mul(value, const(value, input_scale))), const(value, alpha * scale))
    return v.lazy(b, v.where(v.le(value, const(value, 0.0)), low, v.mul(value, const(value, scale))))


@lowering("softplus")
def softplus(b: Builder, x: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Result:
    return v.lazy(b, v.softplus(v.value_of(x, b.dtype), beta, threshold))


@lowering("threshold")
def threshold(b: Builder, x: Tensor, limit: Number, value: Number) -> Result:
    read = v.exact(x, b.dtype)
    return v.lazy(b, v.where(v.le(read, v.scalar_in(limit, b.dtype)), v.number(value, b.dtype), read))


@lowering("hardshrink")
def hardshrink(b: Builder, x: Tensor, lambd: float = 0.5) -> Result:
    read = v.exact(x, b.dtype)
    inside = v.both(v.ge(read, const(read, -lambd)), v.le(read, const(read, lambd)))
    return v.lazy(b, v.where(inside, const(read, 0.0), read))


@lowering("softshrink")
def softshrink(b: Builder, x: Tensor, lambd: float = 0.5) -> Result:
    read, limit = v.value_of(x, b.dtype), float(lambd)
    low = v.where(v.lt(read, const(read, -limit)), v.add(read, const(read, limit)), v.mul(read, const(read, 0.0)))
    return v.lazy(b, v.where(v.gt(read, const(read, limit)), v.sub(read, const(read, limit)), low))


@lowering("log_sigmoid_forward")
def log_sigmoid(b: Builder, x: Tensor) -> Result:
    """The second result is a buffer for backward passes that eager leaves empty on the CPU's float path."""
    second = b.value[1]
    result = b.lazy(x.size, x.dtype, _log_sigmoid(x.body()))
    other = b.lazy(b.sizes(second), x.dtype, v.exp(v.neg(alu(Op.ABS, x.body()))))
    return result, other


@lowering("logit")
def logit(b: Builder, x: Tensor, eps: float | None = None) -> Result:
    value = v.value_of(x, b.dtype)
    if eps is not None:
        value = v.clamp(value, const(value, eps), const(value, 1.0 - eps))
    return v.lazy(b, alu(Op.LOG, v.div(value, v.sub(const(value, 1.0), value))))


@lowering("glu")
def glu(b: Builder, x: Tensor, dim: int = -1) -> Result:
    dim %= x.rank
    half = x.size[dim] // 2
    x = b.settle(x)
    left, right = tx.narrow(x, dim, 0, half), tx.narrow(x, dim, half, half)
    return v.lazy(b, v.mul(left.body(), v.sigmoid(right.body())))


@lowering("nan_to_num")
def nan_to_num(b: Builder, x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Result:
    if not x.dtype.is_float:
        return v.lazy(b, x.body())
    limits = v.torch_info(x.dtype)
    value = tx.rounded(x.body(), x.dtype)
    high = const(value, limits.max if posinf is None else posinf)
    low = const(value, limits.min if neginf is None else neginf)
    finite = v.where(v.eq(value, const(value, math.inf)), high, v.where(v.eq(value, const(value, -math.inf)), low, value))
    return v.lazy(b, v.where(v.isnan(value), const(value, nan or 0.0), finite))


@lowering("round.decimals")
def round_decimals(b: Builder, x: Tensor, decimals: int) -> Result:
    if not x.dtype.is_float:
        return v.lazy(b, x.body()) if decimals >= 0 else None
    value = v.exact(x, b.dtype)
    scale = const(value, 10.0 ** abs(decimals))
    if decimals >= 0:
        return v.lazy(b, v.div(alu(Op.ROUND, v.mul(value, scale)), scale))
    return v.lazy(b, v.mul(alu(Op.ROUND, v.div(value, scale)), scale))


def _converted(x: Tensor, dtype: DType) -> Value:
    jump = x.dtype.is_float and not dtype.is_float
    value = tx.cast(tx.rounded(x.body(), x.dtype) if jump else x.body(), dtype)
    if isinstance(value, Const) and dtype.compute is not dtype:
        return v.scalar_in(value.value, dtype)
    return value if x.dtype is dtype or x.dtype in HELD_BY_HALVES else tx.rounded(value, dtype)


@lowering("_to_copy", "clone", "contiguous", "lift_fresh_copy")
def to_copy(b: Builder, x: Tensor | bool | int | float, **ignored: object) -> Result:
    """A conversion, or a copy: which reads its source where it lies until something needs it elsewhere. vmap also converts numbers.

    A conversion to a half type rounds whatever follows it: the graph says so.
    """
    if not isinstance(x, Tensor):
        return b.lazy((), b.dtype, tx.constant(x, b.dtype))
    if x.dtype is DType.FLOAT8:
        return _from_bytes(b, x)
    if x.dtype is b.dtype:
        return x
    return b.lazy(x.size, b.dtype, _converted(x, b.dtype))


def _from_bytes(b: Builder, x: Tensor) -> Result:
    """A conversion from floats of eight bits, whose bytes are read."""
    assert x.window is not None
    value = decoded(replace(x, dtype=DType.U8, _body=[]).body(), b.named[x.window.buffer].torch_dtype)
    return None if value is None else b.lazy(x.size, b.dtype, tx.rounded(tx.cast(value, b.dtype), b.dtype))


@lowering("copy")
def copy(b: Builder, target: Tensor, source: Tensor, non_blocking: bool = False) -> Result:
    return v.lazy(b, _converted(source, b.dtype))


@lowering("fill.Scalar", "fill.Tensor")
def fill(b: Builder, x: Tensor, value: Operand) -> Result:
    if not v.fits(value, b.dtype):
        return None
    return v.lazy(b, v.value_of(value, b.dtype))
