"""C++ element types: how each IR dtype is stored, computed with, loaded, stored and written as a literal."""

from __future__ import annotations

import math

from precast.lowering.ir.scalars import DType

STORAGE: dict[DType, str] = {
    DType.F64: "double",
    DType.F32: "float",
    DType.BF16: "uint16_t",
    DType.F16: "uint16_t",
    DType.I64: "int64_t",
    DType.I32: "int32_t",
    DType.I16: "int16_t",
    DType.I8: "int8_t",
    DType.U8: "uint8_t",
    DType.BOOL: "uint8_t",
    DType.FLOAT8: "uint8_t",
}
"""The type of an element in memory. `bool` lies as uint8_t: loads of `bool` do not vectorise in GCC 12."""

COMPUTE: dict[DType, str] = {**STORAGE, DType.BF16: "float", DType.F16: "float", DType.BOOL: "bool"}
"""The type of an element in a register."""

UNSIGNED: dict[DType, str] = {DType.I64: "uint64_t", DType.I32: "uint32_t", DType.I16: "uint16_t", DType.I8: "uint8_t", DType.U8: "uint8_t"}

LIMITS: dict[DType, tuple[int, int]] = {
    DType.I64: (-(2**63), 2**63 - 1),
    DType.I32: (-(2**31), 2**31 - 1),
    DType.I16: (-(2**15), 2**15 - 1),
    DType.I8: (-128, 127),
    DType.U8: (0, 255),
    DType.BOOL: (0, 1),
}


def storage(dtype: DType) -> str:
    """C++ type of an element in memory; `TypeError` for types that only library calls understand."""
    if dtype not in STORAGE:
        raise TypeError(f"no generated kernel can hold {dtype.value} elements: such buffers belong to extern calls only")
    return STORAGE[dtype]


def literal(value: bool | int | float, dtype: DType) -> str:
    """`value` as a C++ literal of `dtype`'s compute type, exact (floats in hexadecimal)."""
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype.is_float:
        return float_literal(float(value), dtype is not DType.F64)
    number = wrap_int(int(value), dtype)
    if dtype is DType.I64:
        return "INT64_MIN" if number == -(2**63) else f"INT64_C({number})"
    if dtype is DType.I32:
        return "INT32_MIN" if number == -(2**31) else str(number)
    return f"({COMPUTE[dtype]})({number})"


def float_literal(value: float, single: bool) -> str:
    suffix = "f" if single else ""
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return ("-" if value < 0 else "") + f"__builtin_inf{suffix}()"
    if single and abs(value) >= 3.4028235677973366e38:
        return ("-" if value < 0 else "") + "__builtin_inff()"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value)}.0{suffix}" if value or math.copysign(1.0, value) > 0 else f"-0.0{suffix}"
    return f"{value.hex()}{suffix}"


def wrap_int(value: int, dtype: DType) -> int:
    """`value` reduced to `dtype`'s range as two's complement does it."""
    low, high = LIMITS[dtype]
    return (value - low) % (high - low + 1) + low


def load(dtype: DType, place: str) -> str:
    """Expression that reads `place` (an lvalue of the storage type) into the compute type."""
    match dtype:
        case DType.BF16:
            return f"bf16_load({place})"
        case DType.F16:
            return f"f16_load({place})"
        case DType.BOOL:
            return f"({place} != 0)"
        case _:
            return place


def store(dtype: DType, value: str) -> str:
    """Expression that turns the compute value `value` into the storage type."""
    match dtype:
        case DType.BF16:
            return f"bf16_store({value})"
        case DType.F16:
            return f"f16_store({value})"
        case DType.BOOL:
            return f"(uint8_t)({value})"
        case _:
            return value


PROLOGUE = r"""
#include <stdint.h>
#define INLINE static inline __attribute__((always_inline))
INLINE float bf16_load(uint16_t h) { const uint32_t u = (uint32_t)h << 16; float f; __builtin_memcpy(&f, &u, 4); return f; }
INLINE uint16_t bf16_store(float f) {
  uint32_t u; __builtin_memcpy(&u, &f, 4);
  const uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (uint16_t)(f != f ? 0x7fc0u : r);
}
INLINE float bf16_round(float f) {
  uint32_t u; __builtin_memcpy(&u, &f, 4);
  const uint32_t b = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  float r; __builtin_memcpy(&r, &b, 4);
  return f != f ? f : r;
}
INLINE float f16_load(uint16_t h) {
  const uint32_t s = (uint32_t)(h & 0x8000u) << 16, m = (uint32_t)(h & 0x7fffu) << 13;
  float n; const uint32_t nb = m + 0x38000000u; __builtin_memcpy(&n, &nb, 4);
  float d; const uint32_t db = m + 0x38800000u; __builtin_memcpy(&d, &db, 4);
  d = d - 6.103515625e-05f;
  float x; const uint32_t xb = m + 0x70000000u; __builtin_memcpy(&x, &xb, 4);
  const float v = m < 0x00800000u ? d : (m >= 0x0f800000u ? x : n);
  uint32_t u; __builtin_memcpy(&u, &v, 4); u |= s;
  float f; __builtin_memcpy(&f, &u, 4); return f;
}
INLINE uint16_t f16_store(float f) {
  uint32_t u; __builtin_memcpy(&u, &f, 4);
  const uint32_t s = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  float af; __builtin_memcpy(&af, &a, 4);
  const float df = af + 0.5f; uint32_t d; __builtin_memcpy(&d, &df, 4);
  const uint32_t sub = d - 0x3f000000u;
  const uint32_t nor = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
  const uint32_t inf = a > 0x7f800000u ? 0x7e00u : 0x7c00u;
  const uint32_t r = a >= 0x477ff000u ? inf : (a < 0x38800000u ? sub : nor);
  return (uint16_t)(s | r);
}
INLINE float f16_round(float f) {
  uint32_t u; __builtin_memcpy(&u, &f, 4);
  int32_t e = (int32_t)(u & 0x7f800000u);
  e = e < 0x38800000 ? 0x38800000 : e; e = e > 0x47800000 ? 0x47800000 : e;
  float m; e += 0x06c00000; __builtin_memcpy(&m, &e, 4);
  return __builtin_copysignf(((f + m) - m) * 0x1p112f * 0x1p-112f, f);
}
INLINE float f16_round_finite(float f) {
  uint32_t u; __builtin_memcpy(&u, &f, 4);
  int32_t e = (int32_t)(u & 0x7f800000u);
  e = e < 0x38800000 ? 0x38800000 : e;
  float m; e += 0x06c00000; __builtin_memcpy(&m, &e, 4);
  return __builtin_copysignf((f + m) - m, f);
}
"""
"""Half conversions by bit tricks, round to nearest even; they vectorise where `_Float16` does not (GCC 12).

`f16_round` adds 1.5 * 2**13 times the power of two below (or that of the least normal half, or 2**16): what is left of `f` in such a sum
are the bits that a half has. What has no half then overflows by a product, to infinity. It and `bf16_round` are what a store and a load
make of a value, in half of the instructions; `f16_round_finite` is for values that are halves' or NaN."""


BLOCKS_OF_HALVES = r"""
#ifdef __F16C__
typedef short v8_f16 __attribute__((vector_size(16))); typedef float v8_f32 __attribute__((vector_size(32)));
#endif
static __attribute__((noinline)) void halves_to_floats(float* to, const uint16_t* from, int64_t count) {
  int64_t done = 0;
#ifdef __F16C__
  for (; done + 16 <= count; done += 16) {
    v8_f16 a, b; __builtin_memcpy(&a, from + done, 16); __builtin_memcpy(&b, from + done + 8, 16);
    const v8_f32 c = __builtin_ia32_vcvtph2ps256(a), d = __builtin_ia32_vcvtph2ps256(b);
    __builtin_memcpy(to + done, &c, 32); __builtin_memcpy(to + done + 8, &d, 32);
  }
#endif
  #pragma omp simd
  for (int64_t i = done; i < count; ++i) to[i] = f16_load(from[i]);
}
static __attribute__((noinline)) void floats_to_halves(uint16_t* to, const float* from, int64_t count) {
  int64_t done = 0;
#ifdef __F16C__
  for (; done + 16 <= count; done += 16) {
    v8_f32 a, b; __builtin_memcpy(&a, from + done, 32); __builtin_memcpy(&b, from + done + 8, 32);
    const v8_f16 c = __builtin_ia32_vcvtps2ph256(a, 0), d = __builtin_ia32_vcvtps2ph256(b, 0);
    __builtin_memcpy(to + done, &c, 16); __builtin_memcpy(to + done + 8, &d, 16);
  }
#endif
  #pragma omp simd
  for (int64_t i = done; i < count; ++i) to[i] = f16_store(from[i]);
}
"""
"""Blocks of float16 by the processor's own conversions, which GCC 12 has no vectorised form of: one instruction in place of a dozen."""


def helpers(source: str) -> str:
    """What `source` needs of this file beside the prologue."""
    return BLOCKS_OF_HALVES if "halves_to_floats(" in source or "floats_to_halves(" in source else ""
