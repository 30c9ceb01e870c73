"""Symbolic floats of the graph (`x.size(-1) ** -0.5`, a float argument) as values of the loop IR, computed in double as Python does."""

from __future__ import annotations

from typing import Any

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.ir.nodes import Const, Index, Value
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.sizes import Unsupported

F64 = DType.F64


def is_real(number: object) -> bool:
    """Whether a symbolic number is a float."""
    return isinstance(number, sympy.Expr) and not number.is_integer


def real_value(expr: Any) -> Value:
    """The number as an F64 value. Raises Unsupported, which names the function that the IR lacks."""
    if expr.is_number:
        return Const(float(expr), F64)
    if expr.is_integer:
        return tx.cast(Index(expr), F64)
    if expr.is_Symbol:
        return Index(expr, F64)
    name = type(expr).__name__.removeprefix("OpaqueUnaryFn_")
    if name == "ToFloat":
        return real_value(expr.args[0])
    args = [real_value(a) for a in expr.args]
    if name in FOLDED:
        return _fold(FOLDED[name], args)
    if name in OPERATIONS:
        return tx.alu(OPERATIONS[name], *args)
    raise Unsupported(f"a number of the graph, {expr}, uses {name}, which precast does not know")


def _fold(op: Op, args: list[Value]) -> Value:
    total = args[0]
    for other in args[1:]:
        total = tx.alu(op, total, other)
    return total


FOLDED: dict[str, Op] = {"Add": Op.ADD, "Mul": Op.MUL, "Max": Op.MAX, "Min": Op.MIN}

OPERATIONS: dict[str, Op] = {
    "IntTrueDiv": Op.DIV,
    "FloatTrueDiv": Op.DIV,
    "FloatPow": Op.POW,
    "Pow": Op.POW,
    "TruncToFloat": Op.TRUNC,
    "Abs": Op.ABS,
    "sqrt": Op.SQRT,
    "exp": Op.EXP,
    "log": Op.LOG,
    "log2": Op.LOG2,
    "sin": Op.SIN,
    "cos": Op.COS,
    "tan": Op.TAN,
    "asin": Op.ASIN,
    "acos": Op.ACOS,
    "atan": Op.ATAN,
    "sinh": Op.SINH,
    "cosh": Op.COSH,
    "tanh": Op.TANH,
}
"""torch's functions of real numbers (all computed in double); `exp` and its kin are printed as `OpaqueUnaryFn_exp`."""
