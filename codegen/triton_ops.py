"""One row an op: how each `Op` is written in Triton for float, integer and boolean operands, and the helpers that it needs.

A row holds format strings over `{a}`, `{b}`, `{c}` (operand names). `None` means that the op has no meaning there, or none yet; the
kernel is then refused with that reason. `HELPERS` are the bodies of the jit functions that rows name; they are copied into the kernels
that use them, so that a stored source stands alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from precast.lowering.ir import COMPARISONS, DType, Op, ReduceOp

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
}


class Unsupported(ValueError):
    """A kernel that this renderer refuses; the message is the reason."""


@dataclass(frozen=True)
class Row:
    real: str | None
    integer: str | None = None
    boolean: str | None = None


def _device(name: str) -> Row:
    return Row(f"libdevice.{name}({{a}})")


def _device2(name: str) -> Row:
    return Row(f"libdevice.{name}({{a}}, {{b}})")


def _compare(sign: str) -> Row:
    return Row(f"{{a}} {sign} {{b}}", f"{{a}} {sign} {{b}}", f"{{a}}.to(tl.int32) {sign} {{b}}.to(tl.int32)")


ROWS: dict[Op, Row] = {
    Op.NEG: Row("-{a}", "-{a}"),
    Op.ABS: Row("tl.abs({a})", "tl.abs({a})", "{a}"),
    Op.EXP: Row("tl.exp({a})"),
    Op.EXP2: Row("tl.exp2({a})"),
    Op.EXPM1: _device("expm1"),
    Op.LOG: Row("tl.log({a})"),
    Op.LOG2: Row("tl.log2({a})"),
    Op.LOG10: _device("log10"),
    Op.LOG1P: _device("log1p"),
    Op.SQRT: Row("root({a})"),
    Op.RSQRT: Row("tl.rsqrt({a})"),
    Op.SIN: _device("sin"),
    Op.COS: _device("cos"),
    Op.TAN: _device("tan"),
    Op.ASIN: _device("asin"),
    Op.ACOS: _device("acos"),
    Op.ATAN: _device("atan"),
    Op.SINH: _device("sinh"),
    Op.COSH: _device("cosh"),
    Op.TANH: _device("tanh"),
    Op.ASINH: _device("asinh"),
    Op.ACOSH: _device("acosh"),
    Op.ATANH: _device("atanh"),
    Op.ERF: _device("erf"),
    Op.ERFC: _device("erfc"),
    Op.LGAMMA: _device("lgamma"),
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
    Op.DIV: Row("divide({a}, {b})"),
    Op.FLOORDIV: Row("floordiv_float({a}, {b})", "floordiv_int({a}, {b})"),
    Op.TRUNCDIV: Row("libdevice.trunc(divide({a}, {b}))", "truncdiv_int({a}, {b})"),
    Op.MOD: Row("mod_float({a}, {b})", "mod_int({a}, {b})"),
    Op.REM: Row("libdevice.fmod({a}, {b})", "rem_int({a}, {b})"),
    Op.POW: _device2("pow"),
    Op.MIN: Row("minimum({a}, {b})", "tl.minimum({a}, {b})", "{a} & {b}"),
    Op.MAX: Row("maximum({a}, {b})", "tl.maximum({a}, {b})", "{a} | {b}"),
    Op.ATAN2: _device2("atan2"),
    Op.HYPOT: _device2("hypot"),
    Op.COPYSIGN: _device2("copysign"),
    Op.NEXTAFTER: _device2("nextafter"),
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
    "signbit": """
def signbit(a):
    if a.dtype == tl.float64:
        return a.to(tl.int64, bitcast=True) < 0
    return a.to(tl.int32, bitcast=True) < 0
""",
    "minimum": """
def minimum(a, b):
    return tl.where((a < b) | (a != a), a, b)
""",
    "maximum": """
def maximum(a, b):
    return tl.where((a > b) | (a != a), a, b)
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
    return tl.where((a < b) | (a != a), a, b)
""",
    "combine_max": """
def combine_max(a, b):
    return tl.where((a > b) | (a != a), a, b)
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
LIMITS = {DType.I64: 63, DType.I32: 31, DType.I16: 15, DType.I8: 7}


def write(op: Op, operands: DType, names: tuple[str, ...]) -> str:
    """The expression for `op` on operands of that type; raises `Unsupported` where the table has none."""
    row = ROWS.get(op)
    form = None if row is None else row.real if operands.is_float else row.boolean if operands is DType.BOOL else row.integer
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
    low = op in (ReduceOp.MAX, ReduceOp.ARGMAX)
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


_WORD = re.compile(r"\b[a-z_0-9]+(?=\()|\bcombine_[a-z]+")


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
