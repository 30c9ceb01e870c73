"""Floats of eight bits, read as bytes: their values in f32, by way of f16, which holds each of them up to a power of two."""

from __future__ import annotations

import math

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.lazy_tensor import alu, compare
from precast.lowering.ir.nodes import Alu, Value, walk
from precast.lowering.ir.scalars import DType, Op

FROM_F16 = {"float8_e4m3fn": (256.0, 0x7F, 0x7F), "float8_e4m3fnuz": (128.0, 0xFF, 0x80)}
"""Of types with four bits of exponent: the factor from the f16 whose bits theirs are, which bits of the byte tell a NaN, and what they are
then."""
NODES = 9
"""Operations that decoding takes at most."""


def decoded(byte: Value, kind: str) -> Value | None:
    """The f32 value of a byte of torch's type `kind`; None for a type that has numbers beyond f16's."""
    bits = tx.cast(byte, DType.I16)
    if kind == "float8_e5m2":  # the upper half of an f16
        return tx.cast(_half(alu(Op.MUL, bits, tx.constant(256, DType.I16))), DType.F32)
    if kind not in FROM_F16:
        return None
    factor, looked_at, nan = FROM_F16[kind]
    sign = alu(Op.AND, bits, tx.constant(128, DType.I16))
    value = alu(Op.MUL, _half(alu(Op.MUL, alu(Op.ADD, bits, sign), tx.constant(128, DType.I16))), tx.constant(factor, DType.F32))
    low = alu(Op.AND, bits, tx.constant(looked_at, DType.I16))
    return alu(Op.WHERE, compare(Op.EQ, low, tx.constant(nan, DType.I16)), tx.constant(math.nan, DType.F32), value)


def decodings(value: Value) -> int:
    """How many bytes are decoded in the value."""
    return sum(isinstance(node, Alu) and node.op is Op.BITCAST and node.dtype is DType.F16 for node in walk(value))


def _half(bits: Value) -> Value:
    return Alu(Op.BITCAST, (bits,), DType.F16)


__all__ = ["NODES", "decoded", "decodings"]
