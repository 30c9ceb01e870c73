"""What an op costs on one element, in vector instructions of a CPU, roughly: for the threading and recomputation models."""

from __future__ import annotations

from precast.lowering.ir.scalars import Op

COSTS: dict[Op, float] = {
    Op.MIN: 3, Op.MAX: 3,
    Op.SQRT: 6, Op.DIV: 6,
    Op.RSQRT: 10,
    Op.FLOORDIV: 20, Op.TRUNCDIV: 20, Op.EXP: 20,
    Op.EXP2: 30, Op.LOG: 30, Op.LOG2: 30,
    Op.MOD: 40, Op.REM: 40, Op.NEXTAFTER: 40, Op.ERF: 40,
    Op.HYPOT: 60,
    Op.EXPM1: 60, Op.LOG10: 60, Op.LOG1P: 60, Op.SIN: 60, Op.COS: 60, Op.TAN: 60,
    Op.ASIN: 60, Op.ACOS: 60, Op.ATAN: 60, Op.SINH: 60, Op.COSH: 60, Op.TANH: 60, Op.ASINH: 60, Op.ACOSH: 60, Op.ATANH: 60, Op.ERFC: 60,
    Op.PHILOX: 80,
    Op.POW: 100, Op.ATAN2: 100,
    Op.GCD: 200, Op.J0: 200, Op.J1: 200, Op.Y0: 200, Op.Y1: 200,
    Op.LGAMMA: 400,
}  # fmt: skip
"""Ops that take more than one instruction."""


def op_cost(op: Op) -> float:
    """Vector instructions for one element."""
    return COSTS.get(op, 1.0)
