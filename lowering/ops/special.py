"""Special functions: composed from the vocabulary by the formulas that eager uses, so that they fuse and run as vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.build.builder import Builder
from precast.lowering.build.lazy_tensor import Tensor, alu
from precast.lowering.build.registry import Result, lowering
from precast.lowering.build.scalar_exprs import Operand, const
from precast.lowering.ir.nodes import Alu, Value
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ops import cephes_series


def _polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule, the highest power first."""
    total = const(x, coefficients[0])
    for c in coefficients[1:]:
        total = v.add(v.mul(total, x), const(x, c))
    return total


def _chebyshev(x: Value, coefficients: Sequence[float]) -> Value:
    """By Clenshaw's rule over twice the argument, the highest order first; those that cannot count in single precision are left out."""
    if x.dtype.compute is DType.F32:
        largest = max(map(abs, coefficients))
        coefficients = coefficients[next(i for i, c in enumerate(coefficients) if abs(c) > 1e-10 * largest) :]
    before, last, total = const(x, 0.0), const(x, 0.0), const(x, coefficients[0])
    for c in coefficients[1:]:
        before, last = last, total
        total = v.add(v.sub(v.mul(x, last), before), const(x, c))
    return v.mul(const(x, 0.5), v.sub(total, before))


def _bessel_i(near: Sequence[float], far: Sequence[float], scaled: bool, odd: bool) -> Callable[[Value], Value]:
    def rule(x: Value) -> Value:
        size = alu(Op.ABS, x)
        small = _chebyshev(v.sub(v.mul(size, const(x, 0.5)), const(x, 2.0)), near)
        large = _chebyshev(v.sub(v.div(const(x, 32.0), size), const(x, 2.0)), far)
        growth = v.exp(size)
        if not scaled:
            small, large = v.mul(growth, small), v.mul(growth, large)
        small = v.mul(small, size) if odd else small
        found = v.where(v.le(size, const(x, 8.0)), small, v.div(large, alu(Op.SQRT, size)))
        return v.where(v.lt(x, const(x, 0.0)), v.neg(found), found) if odd else found

    return rule


def _spherical_bessel_j0(x: Value) -> Value:
    near = _polynomial(v.mul(x, x), [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)])
    far = v.where(tx.compare(Op.ISINF, x), const(x, 0.0), v.div(alu(Op.SIN, x), x))
    return v.where(v.lt(alu(Op.ABS, x), const(x, 0.5)), near, far)


def _j(op: Op) -> Callable[[Value], Value]:
    """Eager's have no value at infinity."""
    return lambda x: v.where(tx.compare(Op.ISINF, x), const(x, math.nan), alu(op, x))


def _y(op: Op) -> Callable[[Value], Value]:
    def rule(x: Value) -> Value:
        pole = v.where(v.eq(x, const(x, 0.0)), const(x, -math.inf), const(x, math.nan))
        return v.where(v.both(v.gt(x, const(x, 0.0)), v.lt(x, const(x, math.inf))), alu(op, x), pole)

    return rule


def _erfinv(y: Value) -> Value:
    one, size = const(y, 1.0), alu(Op.ABS, y)
    found = _erfinv_single(y) if y.dtype.compute is DType.F32 else _erfinv_double(y)
    edge = v.where(v.eq(size, one), v.mul(y, const(y, math.inf)), const(y, math.nan))
    return v.where(v.lt(size, one), found, edge)


def _erfinv_single(y: Value) -> Value:
    """Giles, "Approximating the erfinv function" (2012)."""
    one = const(y, 1.0)
    w = v.neg(alu(Op.LOG, v.mul(v.sub(one, y), v.add(one, y))))
    near = _polynomial(v.sub(w, const(y, 2.5)), cephes_series.ERFINV_NEAR)
    far = _polynomial(v.sub(alu(Op.SQRT, w), const(y, 3.0)), cephes_series.ERFINV_FAR)
    return v.mul(y, v.where(v.lt(w, const(y, 5.0)), near, far))


def _erfinv_double(y: Value) -> Value:
    """A rational start and two of Newton's steps; in the tails by the distance from 1, which keeps its digits there."""
    size, one = alu(Op.ABS, y), const(y, 1.0)
    square, rest = v.mul(size, size), v.sub(one, size)
    z = alu(Op.SQRT, v.neg(alu(Op.LOG, v.mul(rest, const(y, 0.5)))))
    middle = v.mul(
        size, v.div(_polynomial(square, cephes_series.ERFINV_MIDDLE_TOP), _polynomial(square, cephes_series.ERFINV_MIDDLE_BOTTOM))
    )
    tail = v.div(_polynomial(z, cephes_series.ERFINV_TAIL_TOP), _polynomial(z, cephes_series.ERFINV_TAIL_BOTTOM))
    inner = v.le(size, const(y, 0.7))
    x = v.where(inner, middle, tail)
    for _ in range(2):
        slope = v.mul(const(y, 2 / math.sqrt(math.pi)), v.exp(v.neg(v.mul(x, x))))
        off = v.where(inner, v.sub(alu(Op.ERF, x), size), v.sub(rest, alu(Op.ERFC, x)))
        x = v.sub(x, v.div(off, slope))
    return alu(Op.COPYSIGN, x, y)


def _ndtri(p: Value) -> Value:
    zero, one, low = const(p, 0.0), const(p, 1.0), const(p, math.exp(-2))
    upper = v.gt(p, const(p, 1 - math.exp(-2)))
    y = v.where(upper, v.sub(one, p), p)
    around = v.sub(y, const(p, 0.5))
    square = v.mul(around, around)
    ratio = v.div(_polynomial(square, cephes_series.NDTRI_MIDDLE_TOP), _polynomial(square, cephes_series.NDTRI_MIDDLE_BOTTOM))
    middle = v.mul(v.add(around, v.mul(around, v.mul(square, ratio))), const(p, math.sqrt(2 * math.pi)))
    x = alu(Op.SQRT, v.mul(const(p, -2.0), alu(Op.LOG, y)))
    z = v.div(one, x)
    tail = v.div(_polynomial(z, cephes_series.NDTRI_TAIL_TOP), _polynomial(z, cephes_series.NDTRI_TAIL_BOTTOM))
    far = v.div(_polynomial(z, cephes_series.NDTRI_FAR_TAIL_TOP), _polynomial(z, cephes_series.NDTRI_FAR_TAIL_BOTTOM))
    x = v.sub(v.sub(x, v.div(alu(Op.LOG, x), x)), v.mul(z, v.where(v.lt(x, const(p, 8.0)), tail, far)))
    found = v.where(v.gt(y, low), middle, v.where(upper, x, v.neg(x)))
    edge = v.where(v.eq(p, zero), const(p, -math.inf), v.where(v.eq(p, one), const(p, math.inf), const(p, math.nan)))
    return v.where(v.both(v.gt(p, zero), v.lt(p, one)), found, edge)


_PI_BEYOND_DOUBLE = 1.2246467991473532e-16
"""pi less `math.pi`."""


def _cotangent_of_pi(part: Value) -> Value:
    """cot(pi * part), for at most a half on either side of 0, with what the rounding of that angle leaves out made up for.

    Both factors are split so that the product of their first parts is exact; the sum by Dekker's fast two-sum (T. J. Dekker, "A
    floating-point technique for extending the available precision", 1971).
    """
    single = part.dtype.compute is DType.F32
    step = 2.0**11 if single else 2.0**25
    first = round(math.pi * step) / step
    second = math.pi - first + (0.0 if single else _PI_BEYOND_DOUBLE)
    high = v.mul(alu(Op.ROUND, v.mul(part, const(part, step))), const(part, 1 / step))
    angle = v.mul(const(part, first), high)
    rest = v.add(v.mul(const(part, first), v.sub(part, high)), v.mul(const(part, second), part))
    whole = v.add(angle, rest)
    missing = v.sub(rest, v.sub(whole, angle))
    tiny = v.lt(alu(Op.ABS, whole), const(part, 2.0**-60))  # its own tangent; CUDA's takes subnormal numbers for 0
    found = v.div(const(part, 1.0), v.where(tiny, whole, alu(Op.TAN, whole)))
    better = v.sub(found, v.add(missing, v.mul(v.mul(missing, found), found)))
    return v.where(tx.compare(Op.ISINF, found), found, better)


def _digamma(x: Value) -> Value:
    """Reflected to the right half, stepped up to at least 10, then the asymptotic series."""
    zero, one, ten = const(x, 0.0), const(x, 1.0), const(x, 10.0)
    negative = v.lt(x, zero)
    at = v.where(negative, v.sub(one, x), x)
    total = zero
    for _ in range(10):
        short = v.lt(at, ten)
        total = v.where(short, v.sub(total, v.div(one, at)), total)
        at = v.where(short, v.add(at, one), at)
    z = v.div(one, v.mul(at, at))
    right = v.sub(v.sub(v.add(total, alu(Op.LOG, at)), v.div(const(x, 0.5), at)), v.mul(z, _polynomial(z, cephes_series.DIGAMMA)))
    part = v.sub(x, alu(Op.ROUND, x))  # exact, and the cotangent has that period
    left = v.sub(right, v.mul(const(x, math.pi), _cotangent_of_pi(part)))
    left = v.where(v.eq(part, zero), const(x, math.nan), left)
    pole = alu(Op.COPYSIGN, const(x, math.inf), v.neg(x))
    return v.where(v.eq(x, zero), pole, v.where(negative, v.where(tx.compare(Op.ISINF, x), const(x, math.nan), left), right))


def _trigamma(x: Value) -> Value:
    one = const(x, 1.0)
    mirrored = v.lt(x, const(x, 0.5))
    at, total = v.where(mirrored, v.sub(one, x), x), const(x, 0.0)
    for _ in range(6):
        total = v.add(total, v.div(one, v.mul(at, at)))
        at = v.add(at, one)
    z = v.div(one, v.mul(at, at))
    rest = v.sub(const(x, 1 / 6), v.mul(z, v.sub(const(x, 1 / 30), v.mul(z, const(x, 1 / 42)))))
    total = v.add(total, v.div(v.add(v.add(one, v.div(const(x, 0.5), at)), v.mul(z, rest)), at))
    sine = alu(Op.SIN, v.mul(const(x, math.pi), x))
    return v.where(mirrored, v.sub(v.div(const(x, math.pi**2), v.mul(sine, sine)), total), total)


def _angle(x: Value) -> Value:
    return v.where(v.isnan(x), x, v.where(v.lt(x, const(x, 0.0)), const(x, math.pi), const(x, 0.0)))


def _lcm(a: Value, b: Value) -> Value:
    """Short integers wrap at the end, as C's do."""
    kind = a.dtype
    if kind.itemsize < 4:
        a, b = tx.cast(a, DType.I32), tx.cast(b, DType.I32)
    common = alu(Op.GCD, a, b)
    none = v.eq(common, const(a, 0))
    whole = v.mul(alu(Op.TRUNCDIV, a, v.where(none, const(a, 1), common)), b)
    return tx.cast(v.where(none, const(a, 0), alu(Op.ABS, whole)), kind)


I0, I0E = (_bessel_i(cephes_series.I0_NEAR, cephes_series.I0_FAR, scaled, odd=False) for scaled in (False, True))
I1, I1E = (_bessel_i(cephes_series.I1_NEAR, cephes_series.I1_FAR, scaled, odd=True) for scaled in (False, True))

ROWS: dict[str, Callable[..., Value]] = {
    "angle": _angle,
    "digamma": _digamma,
    "erfinv": _erfinv,
    "gcd": lambda a, b: alu(Op.GCD, a, b),
    "i0": I0,
    "lcm": _lcm,
    "ldexp.Tensor": lambda x, power: v.mul(x, alu(Op.EXP2, power)),
    "special_bessel_j0": _j(Op.J0),
    "special_bessel_j1": _j(Op.J1),
    "special_bessel_y0": _y(Op.Y0),
    "special_bessel_y1": _y(Op.Y1),
    "special_i0e": I0E,
    "special_i1": I1,
    "special_i1e": I1E,
    "special_modified_bessel_i0": I0,
    "special_modified_bessel_i1": I1,
    "special_ndtri": _ndtri,
    "special_spherical_bessel_j0": _spherical_bessel_j0,
}
NOT_HALF = [name for name in ROWS if "bessel" in name or name == "special_ndtri"]


def _register() -> None:
    for name, row in ROWS.items():

        def rule(b: Builder, *operands: Operand, _row: Callable[..., Value] = row, _name: str = name) -> Result:
            if b.dtype is DType.BOOL or _name in NOT_HALF and b.dtype.compute is not b.dtype:
                return None  # eager has none and says so
            return v.lazy(b, _row(*(v.exact(o, b.dtype) for o in operands)))

        lowering(name)(rule)


_register()


@lowering("polygamma")
def polygamma(b: Builder, order: int, x: Tensor) -> Result:
    """The higher ones are a sum of zeta's that may be long, and stay with ATen."""
    if order > 1:
        return None
    return v.lazy(b, (_trigamma if order else _digamma)(v.exact(x, b.dtype)))


MANTISSA = {DType.F32: (DType.I32, 23, 8), DType.F64: (DType.I64, 52, 11)}
"""The integer of the same width, and how many bits mantissa and exponent have."""


@lowering("frexp.Tensor")
def frexp(b: Builder, x: Tensor) -> Result:
    """By the bits: denormals are scaled up first, what has no exponent is handed on."""
    value = v.exact(x, x.dtype)
    kind, bits, width = MANTISSA[value.dtype.compute]
    bias, scale = (1 << width - 1) - 2, bits + 1
    tiny = v.lt(alu(Op.ABS, value), const(value, 2.0 ** (1 - bias)))
    scaled = v.where(tiny, v.mul(value, const(value, 2.0**scale)), value)
    whole = Alu(Op.BITCAST, (scaled,), kind)
    field = alu(Op.AND, alu(Op.SHR, whole, tx.constant(bits, kind)), tx.constant((1 << width) - 1, kind))
    rest = alu(Op.AND, whole, tx.constant(~(((1 << width) - 1) << bits), kind))
    mantissa = Alu(Op.BITCAST, (alu(Op.OR, rest, tx.constant(bias << bits, kind)),), value.dtype.compute)
    exponent = v.sub(field, v.where(tiny, tx.constant(bias + scale, kind), tx.constant(bias, kind)))
    none = v.either(v.eq(value, const(value, 0.0)), v.eq(field, tx.constant((1 << width) - 1, kind)))
    power = tx.cast(v.where(none, tx.constant(0, kind), exponent), DType.I32)
    return b.lazy(x.size, x.dtype, v.where(none, value, mantissa)), b.lazy(x.size, DType.I32, power)
