"""One row an op: how each `Op` is written in C++ for float, integer and boolean operands.

A row holds format strings over `{a}`, `{b}`, `{c}` (operand names), `{T}` (compute type), `{U}` (its unsigned twin), `{f}` ("f" for single
precision). Operands are plain names, so they may be repeated. `None` means that the op has no meaning there; lowering must cast first.
"""

from __future__ import annotations

from dataclasses import dataclass

from precast.codegen.cpp.types import COMPUTE, UNSIGNED
from precast.lowering.ir.scalars import COMPARISONS, DType, Op


@dataclass(frozen=True)
class Row:
    real: str | None
    integer: str | None = None
    boolean: str | None = None


def _math(name: str) -> Row:
    return Row(f"{name}{{f}}({{a}})")


ROWS: dict[Op, Row] = {
    Op.NEG: Row("-{a}", "({T})(-({U}){a})"),
    Op.ABS: Row("__builtin_fabs{f}({a})", "({T})({a} < 0 ? -({U}){a} : ({U}){a})", "{a}"),
    Op.EXP: _math("exp"),
    Op.EXP2: _math("exp2"),
    Op.EXPM1: _math("expm1"),
    Op.LOG: _math("log"),
    Op.LOG2: _math("log2"),
    Op.LOG10: _math("log10"),
    Op.LOG1P: _math("log1p"),
    Op.SQRT: Row("__builtin_sqrt{f}({a})"),
    Op.RSQRT: Row("1 / __builtin_sqrt{f}({a})"),
    Op.SIN: _math("sin"),
    Op.COS: _math("cos"),
    Op.TAN: _math("tan"),
    Op.ASIN: _math("asin"),
    Op.ACOS: _math("acos"),
    Op.ATAN: _math("atan"),
    Op.SINH: _math("sinh"),
    Op.COSH: _math("cosh"),
    Op.TANH: _math("tanh"),
    Op.ASINH: _math("asinh"),
    Op.ACOSH: _math("acosh"),
    Op.ATANH: _math("atanh"),
    Op.ERF: _math("erf"),
    Op.ERFC: _math("erfc"),
    Op.LGAMMA: Row("lgamma{f}_({a})"),
    Op.J0: _math("j0"),
    Op.J1: _math("j1"),
    Op.Y0: _math("y0"),
    Op.Y1: _math("y1"),
    Op.FLOOR: Row("__builtin_floor{f}({a})", "{a}", "{a}"),
    Op.CEIL: Row("__builtin_ceil{f}({a})", "{a}", "{a}"),
    Op.TRUNC: Row("__builtin_trunc{f}({a})", "{a}", "{a}"),
    Op.ROUND: Row("__builtin_rint{f}({a})", "{a}", "{a}"),
    Op.NOT: Row(None, "({T})~{a}", "!{a}"),
    Op.ISNAN: Row("{a} != {a}", "false", "false"),
    Op.ISINF: Row("__builtin_fabs{f}({a}) == __builtin_inf{f}()", "false", "false"),
    Op.SIGNBIT: Row("signbit{f}_({a})", "{a} < 0", "false"),
    Op.BITCAST: Row(None),  # rendered by dtype pair: see `bitcast`
    Op.ADD: Row("{a} + {b}", "({T})(({U}){a} + ({U}){b})", "{a} | {b}"),
    Op.SUB: Row("{a} - {b}", "({T})(({U}){a} - ({U}){b})", "{a} ^ {b}"),
    Op.MUL: Row("{a} * {b}", "({T})(({W}){a} * ({W}){b})", "{a} & {b}"),
    Op.DIV: Row("{a} / {b}"),
    Op.FLOORDIV: Row("floordiv{f}_({a}, {b})", "({T})ifloordiv_<{T}>({a}, {b})"),
    Op.TRUNCDIV: Row("__builtin_trunc{f}({a} / {b})", "({T})itruncdiv_<{T}>({a}, {b})"),
    Op.MOD: Row("mod{f}_({a}, {b})", "({T})imod_<{T}>({a}, {b})"),
    Op.REM: Row("fmod{f}({a}, {b})", "({T})irem_<{T}>({a}, {b})"),
    Op.POW: Row("pow{f}({a}, {b})", "ipow_<{T}>({a}, {b})", "{a} | !{b}"),
    Op.MIN: Row("({a} != {a} ? {a} : ({b} != {b} ? {b} : ({a} < {b} ? {a} : {b})))", "({a} < {b} ? {a} : {b})", "{a} & {b}"),
    Op.MAX: Row("({a} != {a} ? {a} : ({b} != {b} ? {b} : ({a} > {b} ? {a} : {b})))", "({a} > {b} ? {a} : {b})", "{a} | {b}"),
    Op.ATAN2: Row("atan2{f}({a}, {b})"),
    Op.HYPOT: Row("hypot{f}({a}, {b})"),
    Op.COPYSIGN: Row("__builtin_copysign{f}({a}, {b})"),
    Op.NEXTAFTER: Row("nextafter{f}({a}, {b})"),
    Op.GCD: Row(None, "igcd_<{T}, {U}>({a}, {b})"),
    Op.PHILOX: Row(None, "philox_({a}, {b})"),
    Op.LT: Row("{a} < {b}", "{a} < {b}", "!{a} & {b}"),
    Op.LE: Row("{a} <= {b}", "{a} <= {b}", "!{a} | {b}"),
    Op.EQ: Row("{a} == {b}", "{a} == {b}", "{a} == {b}"),
    Op.NE: Row("{a} != {b}", "{a} != {b}", "{a} != {b}"),
    Op.AND: Row(None, "({T})({a} & {b})", "{a} & {b}"),
    Op.OR: Row(None, "({T})({a} | {b})", "{a} | {b}"),
    Op.XOR: Row(None, "({T})({a} ^ {b})", "{a} ^ {b}"),
    Op.SHL: Row(None, "ishl_<{T}, {U}>({a}, {b})"),
    Op.SHR: Row(None, "ishr_<{T}>({a}, {b})"),
    Op.WHERE: Row("{a} ? {b} : {c}", "{a} ? {b} : {c}", "({a} & {b}) | (!{a} & {c})"),
    Op.FMA: Row("{a} * {b} + {c}", "({T})(({W}){a} * ({W}){b} + ({W}){c})"),
}

WRITTEN_OUT = {Op.EXP: "exp_f32", Op.ERF: "erf_f32"}
"""f32 forms that are inlined (`math_prelude`) instead of called."""

VECTOR_UNARY = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc".split()
VECTOR_BINARY = "pow atan2 hypot".split()
SCALAR_UNARY = "j0 j1 y0 y1".split()
SCALAR_BINARY = "fmod nextafter".split()


def prototypes() -> str:
    """Declarations of the math functions; libmvec (glibc 2.35) has vector forms of those marked `simd`."""
    lines = [
        'extern "C" {',
        '#define SIMD __attribute__((simd("notinbranch"), const, nothrow))',
        "#define PURE __attribute__((const, nothrow))",
    ]
    for suffix, kind in (("f", "float"), ("", "double")):
        lines += [f"SIMD {kind} {name}{suffix}({kind});" for name in VECTOR_UNARY]
        lines += [f"SIMD {kind} {name}{suffix}({kind}, {kind});" for name in VECTOR_BINARY]
        lines += [f"PURE {kind} {name}{suffix}({kind});" for name in SCALAR_UNARY]
        lines += [f"PURE {kind} {name}{suffix}({kind}, {kind});" for name in SCALAR_BINARY]
        lines += [f"{kind} lgamma{suffix}_r({kind}, int*) __attribute__((nothrow));"]
    return "\n".join([*lines, "}", HELPERS])


HELPERS = r"""
INLINE float lgammaf_(float a) { int s; return lgammaf_r(a, &s); }
INLINE double lgamma_(double a) { int s; return lgamma_r(a, &s); }
INLINE bool signbitf_(float a) { int32_t u; __builtin_memcpy(&u, &a, 4); return u < 0; }
INLINE bool signbit_(double a) { int64_t u; __builtin_memcpy(&u, &a, 8); return u < 0; }
template <class T> INLINE T realmod_(T a, T b, T r) { return (r != 0 && ((b < 0) != (r < 0))) ? r + b : r; }
INLINE float modf_(float a, float b) { return realmod_<float>(a, b, fmodf(a, b)); }
INLINE double mod_(double a, double b) { return realmod_<double>(a, b, fmod(a, b)); }
template <class T> INLINE T floordivide_(T a, T b, T r) {
  if (b == 0) return a / b;
  T d = (a - r) / b;
  if (r != 0 && ((b < 0) != (r < 0))) d -= 1;
  if (d != 0) { T f = (T)__builtin_floor((double)d); if (d - f > (T)0.5) f += 1; return f; }
  return (T)__builtin_copysign(0.0, (double)(a / b));
}
INLINE float floordivf_(float a, float b) { return floordivide_<float>(a, b, fmodf(a, b)); }
INLINE double floordiv_(double a, double b) { return floordivide_<double>(a, b, fmod(a, b)); }
template <class T> INLINE T itruncdiv_(T a, T b) { return b == 0 ? 0 : (b == (T)-1 && (T)-1 < 0) ? (T)(0 - (uint64_t)a) : a / b; }
template <class T> INLINE T irem_(T a, T b) { return b == 0 || (b == (T)-1 && (T)-1 < 0) ? 0 : a % b; }
template <class T> INLINE T ifloordiv_(T a, T b) {
  const T q = itruncdiv_<T>(a, b), r = irem_<T>(a, b);
  return (r != 0 && ((r < 0) != (b < 0))) ? q - 1 : q;
}
template <class T> INLINE T imod_(T a, T b) { const T r = irem_<T>(a, b); return (r != 0 && ((r < 0) != (b < 0))) ? r + b : r; }
template <class T> INLINE T ipow_(T a, T b) {
  if (b < 0) return a == 1 ? 1 : (a == (T)-1 ? ((b & 1) ? (T)-1 : 1) : 0);
  uint64_t r = 1, x = (uint64_t)a; uint64_t e = (uint64_t)b;
  while (e) { if (e & 1) r *= x; x *= x; e >>= 1; }
  return (T)r;
}
template <class T, class U> INLINE T igcd_(T a, T b) {
  U x = a < 0 ? -(U)a : (U)a, y = b < 0 ? -(U)b : (U)b;
  while (y != 0) { const U r = x % y; x = y; y = r; }
  return (T)x;
}
INLINE long long philox_(long long key, long long counter) {
  unsigned k0 = (unsigned)key, k1 = (unsigned)((unsigned long long)key >> 32);
  unsigned a = (unsigned)counter, b = (unsigned)((unsigned long long)counter >> 32), c = 0, d = 0;
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p = 0xD2511F53ull * a, q = 0xCD9E8D57ull * c;
    a = (unsigned)(q >> 32) ^ b ^ k0; b = (unsigned)q; c = (unsigned)(p >> 32) ^ d ^ k1; d = (unsigned)p;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return a;
}
template <class T, class U> INLINE T ishl_(T a, T b) { return (b < 0 || b >= (T)(8 * sizeof(T))) ? 0 : (T)((U)a << b); }
template <class T> INLINE T ishr_(T a, T b) { return (b < 0 || b >= (T)(8 * sizeof(T))) ? (a < 0 ? (T)-1 : 0) : (T)(a >> b); }
template <class D, class S> INLINE D bits_(S s) {
  static_assert(sizeof(D) == sizeof(S), "bitcast");
  D d; __builtin_memcpy(&d, &s, sizeof(D)); return d;
}
"""


class UnsupportedOp(TypeError):
    """An op met operands that the C++ renderer has no form for; lowering must cast first."""


def operand_dtype(op: Op, operands: tuple[DType, ...], result: DType) -> DType:
    """The type whose row applies: that of the compared or selected operands, else the result's."""
    if op is Op.WHERE:
        return result
    if op in COMPARISONS:
        return operands[0]
    return result


def render(op: Op, names: tuple[str, ...], operands: tuple[DType, ...], result: DType) -> str:
    """C++ expression of `op` over operand `names` of compute types `operands`; its type is `result`'s compute type."""
    if op is Op.BITCAST:
        return bitcast(names[0], operands[0], result)
    kind = operand_dtype(op, operands, result)
    row = ROWS[op]
    form = row.real if kind.is_float else row.boolean if kind is DType.BOOL else row.integer
    if form is None:
        raise UnsupportedOp(
            f"{op.value} has no C++ form for {kind.value} operands (result {result.value}): lowering must cast the operands first"
        )
    wide = "uint32_t" if kind in (DType.I16, DType.I8, DType.U8) else UNSIGNED.get(kind, "")
    a, b, c = (*names, "", "", "")[:3]
    if op in WRITTEN_OUT and kind is not DType.F64:
        return f"{WRITTEN_OUT[op]}({a})"
    return form.format(a=a, b=b, c=c, T=COMPUTE[kind], U=UNSIGNED.get(kind, ""), W=wide, f="" if kind is DType.F64 else "f")


def bounded(op: Op, name: str, bound: str) -> str:
    """`MIN` or `MAX` of a float and a bound that is not NaN: one comparison, whose failure keeps a NaN (and -0 beside 0, as eager does)."""
    return f"{bound} {'<' if op is Op.MIN else '>'} {name} ? {bound} : {name}"


def bitcast(name: str, source: DType, result: DType) -> str:
    """Reinterpretation of the bits of `name`; half types go through their 16-bit storage."""
    if source is DType.BF16:
        name, kind = f"bf16_store({name})", "uint16_t"
    elif source is DType.F16:
        name, kind = f"f16_store({name})", "uint16_t"
    elif source is DType.BOOL:
        name, kind = f"(uint8_t){name}", "uint8_t"
    else:
        kind = COMPUTE[source]
    match result:
        case DType.BF16:
            return f"bf16_load(bits_<uint16_t, {kind}>({name}))"
        case DType.F16:
            return f"f16_load(bits_<uint16_t, {kind}>({name}))"
        case DType.BOOL:
            return f"(bits_<uint8_t, {kind}>({name}) != 0)"
        case _:
            return f"bits_<{COMPUTE[result]}, {kind}>({name})"


def cast(name: str, source: DType, result: DType) -> str:
    """`Tensor.to(result)` of one element."""
    if result is DType.BOOL:
        return name if source is DType.BOOL else f"({name} != 0)"
    if result is DType.BF16:
        return f"bf16_round((float){name})"
    if result is DType.F16:
        return f"f16_round((float){name})"
    if source.is_float and result in (DType.I16, DType.I8, DType.U8):
        return f"({COMPUTE[result]})(int32_t){name}"
    return f"({COMPUTE[result]}){name}"
