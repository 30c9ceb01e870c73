"""One row an op: how each `Op` is written in Triton for float, integer and boolean operands, and the helpers that it needs.

A row holds format strings over `{a}`, `{b}`, `{c}` (operand names). `None` means that the op has no meaning there, or none yet; the
kernel is then refused with that reason. `HELPERS` are the bodies of the jit functions that rows name; they are copied into the kernels
that use them, so that a stored source stands alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from precast.lowering.ir.scalars import COMPARISONS, DType, Op, ReduceOp

TYPES: dict[DType, str] = {
    DType.F64: "tl.float64",
    DType.F32: "tl.float32",
    DType.BF16: "tl.bfloat16",
    DType.F16: "tl.float16",
    DType.I64: "tl.int64",
    DType.I32: "tl.int32",
    DType.I16: "tl.int16",
    DType.I8: "tl.int8",
    DType.U8: "tl.uint8",
    DType.BOOL: "tl.int1",
    DType.FLOAT8: "tl.uint8",
}
"""Triton's names of the element types; a dtype that is missing here cannot be in a kernel."""

POINTERS: dict[DType, str] = {
    DType.F64: "*fp64",
    DType.F32: "*fp32",
    DType.BF16: "*bf16",
    DType.F16: "*fp16",
    DType.I64: "*i64",
    DType.I32: "*i32",
    DType.I16: "*i16",
    DType.I8: "*i8",
    DType.U8: "*u8",
    DType.BOOL: "*i1",
    DType.FLOAT8: "*u8",
}


class Unsupported(ValueError):
    """A kernel that this renderer refuses; the message is the reason."""


@dataclass(frozen=True)
class Row:
    real: str | None
    integer: str | None = None
    boolean: str | None = None
    rough: str | None = None
    """The form on f32 where the result is rounded to a half type: an error of about 1e-6, for a third of the instructions."""
    beside: str | None = None
    """The same where the result is added to a number near 1, so that its error counts beside that; of a quotient, where the divisor is
    such a sum of a number and an exponential."""


def _device(name: str) -> Row:
    return Row(f"libdevice.{name}({{a}})")


def _device2(name: str) -> Row:
    return Row(f"libdevice.{name}({{a}}, {{b}})")


def _compare(sign: str) -> Row:
    return Row(f"{{a}} {sign} {{b}}", f"{{a}} {sign} {{b}}", f"{{a}}.to(tl.int32) {sign} {{b}}.to(tl.int32)")


ROWS: dict[Op, Row] = {
    Op.NEG: Row("({a} * -1.0)", "-{a}"),  # Triton 3.6 subtracts from zero, which loses the sign of a zero
    Op.ABS: Row("tl.abs({a})", "tl.abs({a})", "{a}"),
    Op.EXP: Row("libdevice.exp({a})", rough="tl.exp({a})", beside="power_of_two({a} * 1.4426950408889634)"),
    Op.EXP2: Row("libdevice.exp2({a})", rough="tl.exp2({a})"),
    Op.EXPM1: _device("expm1"),
    Op.LOG: Row("libdevice.log({a})"),
    Op.LOG2: Row("libdevice.log2({a})"),
    Op.LOG10: _device("log10"),
    Op.LOG1P: _device("log1p"),
    Op.SQRT: Row("root({a})", rough="tl.sqrt({a})"),
    Op.RSQRT: Row("inverse_root({a})", rough="tl.rsqrt({a})"),
    Op.SIN: _device("sin"),
    Op.COS: _device("cos"),
    Op.TAN: _device("tan"),
    Op.ASIN: _device("asin"),
    Op.ACOS: _device("acos"),
    Op.ATAN: _device("atan"),
    Op.SINH: _device("sinh"),
    Op.COSH: _device("cosh"),
    Op.TANH: Row("libdevice.tanh({a})", rough="tanh_by_exp({a})", beside="tanh_beside({a})"),
    Op.ASINH: _device("asinh"),
    Op.ACOSH: _device("acosh"),
    Op.ATANH: _device("atanh"),
    Op.ERF: Row("libdevice.erf({a})", rough="erf_by_exp({a})", beside="erf_beside({a})"),
    Op.ERFC: _device("erfc"),
    Op.LGAMMA: _device("lgamma"),
    Op.J0: _device("j0"),
    Op.J1: _device("j1"),
    Op.Y0: _device("y0"),
    Op.Y1: _device("y1"),
    Op.FLOOR: Row("tl.floor({a})", "{a}", "{a}"),
    Op.CEIL: Row("tl.ceil({a})", "{a}", "{a}"),
    Op.TRUNC: Row("libdevice.trunc({a})", "{a}", "{a}"),
    Op.ROUND: Row("libdevice.nearbyint({a})", "{a}", "{a}"),
    Op.NOT: Row(None, "~{a}", "{a} == 0"),
    Op.ISNAN: Row("{a} != {a}", "{a} != {a}", "{a} != {a}"),
    Op.ISINF: Row('tl.abs({a}) == float("inf")', "{a} != {a}", "{a} != {a}"),
    Op.SIGNBIT: Row("signbit({a})", "{a} < 0", "{a} != {a}"),
    Op.ADD: Row("{a} + {b}", "{a} + {b}", "{a} | {b}"),
    Op.SUB: Row("{a} - {b}", "{a} - {b}", "{a} ^ {b}"),
    Op.MUL: Row("{a} * {b}", "{a} * {b}", "{a} & {b}"),
    Op.DIV: Row("divide({a}, {b})", rough="{a} / {b}", beside="{a} * reciprocal({b})"),
    Op.FLOORDIV: Row("floordiv_float({a}, {b})", "floordiv_int({a}, {b})"),
    Op.TRUNCDIV: Row("libdevice.trunc(divide({a}, {b}))", "truncdiv_int({a}, {b})"),
    Op.MOD: Row("mod_float({a}, {b})", "mod_int({a}, {b})"),
    Op.REM: Row("libdevice.fmod({a}, {b})", "rem_int({a}, {b})"),
    Op.POW: Row("libdevice.pow({a}, {b})", "pow_int({a}, {b})"),
    Op.MIN: Row("minimum({a}, {b})", "tl.minimum({a}, {b})", "{a} & {b}"),
    Op.MAX: Row("maximum({a}, {b})", "tl.maximum({a}, {b})", "{a} | {b}"),
    Op.ATAN2: _device2("atan2"),
    Op.HYPOT: _device2("hypot"),
    Op.COPYSIGN: _device2("copysign"),
    Op.NEXTAFTER: _device2("nextafter"),
    Op.GCD: Row(None, "gcd_int({a}, {b})"),
    Op.PHILOX: Row(None, "philox({a}, {b})"),
    Op.LT: _compare("<"),
    Op.LE: _compare("<="),
    Op.EQ: _compare("=="),
    Op.NE: _compare("!="),
    Op.AND: Row(None, "{a} & {b}", "{a} & {b}"),
    Op.OR: Row(None, "{a} | {b}", "{a} | {b}"),
    Op.XOR: Row(None, "{a} ^ {b}", "{a} ^ {b}"),
    Op.SHL: Row(None, "shift_left({a}, {b})"),
    Op.SHR: Row(None, "shift_right({a}, {b})"),
    Op.WHERE: Row("tl.where({a}, {b}, {c})", "tl.where({a}, {b}, {c})", "tl.where({a}, {b}, {c})"),
    Op.FMA: Row("tl.fma({a}, {b}, {c})", "{a} * {b} + {c}"),
}
"""BITCAST is a method call on types of one width and written by the renderer itself."""

HELPERS: dict[str, str] = {
    "divide": """
def divide(a, b):
    # torch divides in IEEE rounding; Triton's `/` on float32 is an approximation
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    return a / b
""",
    "root": """
def root(a):
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    return tl.sqrt(a)
""",
    "inverse_root": """
def inverse_root(a):
    # the instruction flushes denormal operands, and knows about 20 bits of a double
    if a.dtype == tl.float64:
        return libdevice.rsqrt(a)
    tiny = tl.abs(a) < 1.1754943508222875e-38
    return tl.rsqrt(tl.where(tiny, a * 16777216.0, a)) * tl.where(tiny, 4096.0, 1.0)
""",
    "signbit": """
def signbit(a):
    if a.dtype == tl.float64:
        return a.to(tl.int64, bitcast=True) < 0
    return a.to(tl.int32, bitcast=True) < 0
""",
    "reciprocal": """
def reciprocal(a):
    # of at least 1; beyond 2^126 it is 0
    return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1)
""",
    "power_of_two": """
def power_of_two(a):
    # below 2^-126 it is 0
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [a], dtype=tl.float32, is_pure=True, pack=1)
""",
    "tanh_beside": """
def tanh_beside(a):
    return tl.fma(reciprocal(1.0 + power_of_two(a * 2.8853900817779268)), -2.0, 1.0)
""",
    "tanh_by_exp": """
def tanh_by_exp(a):
    # near 0 the series, since the difference from 1 loses digits there
    square = a * a
    small = a - a * square * (0.33333333 - 0.13333333 * square)
    return tl.where(tl.abs(a) < 0.06, small, tanh_beside(a))
""",
    "erf_beside": """
def erf_beside(a):
    # Abramowitz and Stegun 7.1.26, 1.5e-7 off
    size = tl.abs(a)
    t = reciprocal(tl.fma(size, 0.3275911, 1.0))
    sum = tl.fma(t, tl.fma(t, tl.fma(t, tl.fma(t, 1.061405429, -1.453152027), 1.421413741), -0.284496736), 0.254829592)
    found = tl.fma(sum * t, -power_of_two(a * a * -1.4426950408889634), 1.0)
    return tl.where(a < 0, -found, found)
""",
    "erf_by_exp": """
def erf_by_exp(a):
    # near 0 the series, since the difference from 1 loses digits there
    square = a * a
    near = a * (1.1283791671 - square * (0.3761263890 - 0.1128379167 * square))
    return tl.where(tl.abs(a) < 0.1, near, erf_beside(a))
""",
    "pow_int": """
def pow_int(a, b):
    # wraps; a negative exponent gives 0 but for 1 and -1
    odd = (b & 1) != 0
    one = a * 0 + 1
    inverse = tl.where(a == 1, one, tl.where(a == -1, tl.where(odd, -one, one), a * 0))
    result = tl.where(b < 0, inverse, one)
    left = tl.where(b < 0, b * 0, b)
    while tl.max(left.reshape([left.numel]), 0) > 0:
        result = tl.where((left & 1) != 0, result * a, result)
        a = a * a
        left = left >> 1
    return result
""",
    "gcd_int": """
def gcd_int(a, b):
    a, b = a + b * 0, b + a * 0
    while tl.max((b != 0).to(tl.int32).reshape([b.numel]), 0) > 0:
        rest = rem_int(a, b)
        a = tl.where(b != 0, b, a)
        b = tl.where(b != 0, rest, b)
    return tl.where(a < 0, -a, a)
""",
    "philox": """
def philox(key, counter):
    low, high = (counter & 0xFFFFFFFF).to(tl.uint32), (counter >> 32).to(tl.uint32)
    first, second, third, fourth = tl.philox(key, low, high, low * 0, low * 0)
    return first.to(tl.int64)
""",
    "minimum": """
def minimum(a, b):
    if a.dtype == tl.float32:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((a < b) | (a != a), a, b)
""",
    "maximum": """
def maximum(a, b):
    if a.dtype == tl.float32:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((a > b) | (a != a), a, b)
""",
    "nan_last": """
def nan_last(a):
    return tl.where(a != a, float("nan"), a)
""",
    "nan_first": """
def nan_first(a):
    return tl.where(a != a, -float("nan"), a)
""",
    "truncdiv_int": """
def truncdiv_int(a, b):
    return a // tl.where(b == 0, tl.full([1], 1, b.dtype), b)
""",
    "rem_int": """
def rem_int(a, b):
    return a % tl.where(b == 0, tl.full([1], 1, b.dtype), b)
""",
    "floordiv_int": """
def floordiv_int(a, b):
    # Triton's `//` truncates as C does
    quotient = truncdiv_int(a, b)
    return tl.where((rem_int(a, b) != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)
""",
    "floor_quotient": """
def floor_quotient(a, b):
    # of index arithmetic, scalars too: b is positive
    return a // b - tl.where(a % b < 0, 1, 0)
""",
    "floor_rest": """
def floor_rest(a, b):
    return a % b + tl.where(a % b < 0, 1, 0) * b
""",
    "mod_int": """
def mod_int(a, b):
    rest = rem_int(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "mod_float": """
def mod_float(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "floordiv_float": """
def floordiv_float(a, b):
    # torch.floor_divide: Python's rule, with IEEE division by zero
    rest = libdevice.fmod(a, b)
    quotient = divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    floored = tl.floor(quotient)
    floored = tl.where(quotient - floored > 0.5, floored + 1, floored)
    floored = tl.where(quotient == 0, libdevice.copysign(quotient * 0, divide(a, b)), floored)
    return tl.where(b == 0, divide(a, b), floored)
""",
    "shift_left": """
def shift_left(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return tl.where(inside, a << tl.where(inside, b, b * 0), a * 0)
""",
    "shift_right": """
def shift_right(a, b):
    bits: tl.constexpr = a.dtype.primitive_bitwidth
    inside = (b >= 0) & (b < bits)
    return a >> tl.where(inside, b, b * 0 + (bits - 1))
""",
    "combine_add": """
def combine_add(a, b):
    return a + b
""",
    "combine_mul": """
def combine_mul(a, b):
    return a * b
""",
    "combine_or": """
def combine_or(a, b):
    return a | b
""",
    "combine_and": """
def combine_and(a, b):
    return a & b
""",
    "combine_min": """
def combine_min(a, b):
    if a.dtype == tl.float32:
        return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((a < b) | (a != a), a, b)
""",
    "combine_max": """
def combine_max(a, b):
    if a.dtype == tl.float32:
        return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    return tl.where((a > b) | (a != a), a, b)
""",
    "running_logsumexp": """
def running_logsumexp(a, b):
    # the larger of the two comes out of the exponentials; equal infinities have no difference
    high = combine_max(a, b)
    sum = high + libdevice.log1p(libdevice.exp(combine_min(a, b) - high))
    return tl.where((a == b) & (tl.abs(a) == float("inf")), a, sum)
""",
    "last_argmin": """
def last_argmin(a, i, b, j):
    # of running extremes: NaN wins, the highest index among equals
    last = (b < a) | ((b != b) & (a == a)) | (((a == b) | ((a != a) & (b != b))) & (j > i))
    return tl.where(last, b, a), tl.where(last, j, i)
""",
    "last_argmax": """
def last_argmax(a, i, b, j):
    # of running extremes: NaN wins, the highest index among equals
    last = (b > a) | ((b != b) & (a == a)) | (((a == b) | ((a != a) & (b != b))) & (j > i))
    return tl.where(last, b, a), tl.where(last, j, i)
""",
    "combine_argmin": """
def combine_argmin(a, i, b, j):
    # NaN wins, the lowest index among equals
    first = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)
""",
    "combine_argmax": """
def combine_argmax(a, i, b, j):
    # NaN wins, the lowest index among equals
    first = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)
""",
}

NOW = {"add": "now + value", "mul": "now * value", "min": "combine_min(now, value)", "max": "combine_max(now, value)"}
HELPERS |= {
    f"swap_{mode}": f"""
def swap_{mode}(base, place, value, keep, bits: tl.constexpr):
    # reads, combines, and writes back unless another lane wrote between; a lane that is done writes what it read
    places = (base + tl.where(keep, place, 0)).to(tl.pointer_type(bits))
    kind: tl.constexpr = base.dtype.element_ty
    while tl.max(keep.to(tl.int32).reshape([keep.numel]), 0) > 0:
        old = tl.load(places, keep, other=0, volatile=True)
        now = old.to(kind, bitcast=True).to(value.dtype)
        new = ({form}).to(kind).to(bits, bitcast=True)
        keep = keep & (tl.atomic_cas(places, old, tl.where(keep, new, old), sem="relaxed") != old)
"""
    for mode, form in NOW.items()
}
BITS = {DType.F64: DType.I64, DType.F32: DType.I32, DType.BF16: DType.I16, DType.F16: DType.I16}
BITS |= {DType.I64: DType.I64, DType.I32: DType.I32, DType.I16: DType.I16}
"""The integer type through which an element is compared and swapped; hardware does it for 16 bits and wider."""

COMBINE: dict[ReduceOp, str] = {
    ReduceOp.SUM: "combine_add",
    ReduceOp.PROD: "combine_mul",
    ReduceOp.ANY: "combine_or",
    ReduceOp.ALL: "combine_and",
    ReduceOp.MIN: "combine_min",
    ReduceOp.MAX: "combine_max",
    ReduceOp.ARGMIN: "combine_argmin",
    ReduceOp.ARGMAX: "combine_argmax",
}
RUNNING = {**COMBINE, ReduceOp.ARGMIN: "last_argmin", ReduceOp.ARGMAX: "last_argmax", ReduceOp.LOGSUMEXP: "running_logsumexp"}
"""The same for scans."""

LIMITS = {DType.I64: 63, DType.I32: 31, DType.I16: 15, DType.I8: 7}


def write(op: Op, operands: DType, names: tuple[str, ...], rough: bool = False, beside: bool = False) -> str:
    """The expression for `op` on operands of that type; raises `Unsupported` where the table has none. `rough`, `beside`: see `Row`."""
    row = ROWS.get(op)
    form = None if row is None else row.real if operands.is_float else row.boolean if operands is DType.BOOL else row.integer
    if row is not None and row.rough is not None and rough and operands is DType.F32:
        form = row.beside if beside and row.beside is not None else row.rough
    if form is None:
        raise Unsupported(f"{op.value} on {operands.value} has no Triton form")
    a, b, c = (*names, "", "", "")[:3]
    return form.format(a=a, b=b, c=c)


def operand_type(op: Op, operands: tuple[DType, ...], result: DType) -> DType:
    """The type that decides the form: comparisons and WHERE look at what they compare or choose from."""
    if op is Op.WHERE:
        return result
    return operands[0] if op in COMPARISONS or op in (Op.NOT, Op.SHL, Op.SHR) else result


def literal(value: bool | int | float, dtype: DType) -> str:
    """A Python literal that Triton reads back as exactly this value."""
    if dtype is DType.BOOL:
        return str(bool(value))
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        return f'float("{number}")'
    return repr(number)


def identity(op: ReduceOp, dtype: DType) -> str:
    """The neutral element of a reduction, as a literal."""
    low = op in (ReduceOp.MAX, ReduceOp.ARGMAX, ReduceOp.LOGSUMEXP)
    match op:
        case ReduceOp.SUM | ReduceOp.ANY:
            return literal(0, dtype)
        case ReduceOp.PROD | ReduceOp.ALL:
            return literal(1, dtype)
        case _ if dtype.is_float:
            return literal(float("-inf") if low else float("inf"), dtype)
        case _ if dtype is DType.BOOL:
            return literal(not low, dtype)
        case _ if dtype is DType.U8:
            return literal(0 if low else 255, dtype)
        case _:
            return literal(-(1 << LIMITS[dtype]) if low else (1 << LIMITS[dtype]) - 1, dtype)


_WORD = re.compile(r"\b[a-z_0-9]+(?=\()|\b(?:combine|last|running)_[a-z]+")


def needed_helpers(body: str) -> tuple[str, ...]:
    """The helpers that the text calls, those that they call first."""
    found: list[str] = []

    def visit(text: str, above: tuple[str, ...]) -> None:
        for name in _WORD.findall(text):
            if name in HELPERS and name not in found and name not in above:
                visit(HELPERS[name], (*above, name))
                found.append(name)

    visit(body, ())
    return tuple(found)
