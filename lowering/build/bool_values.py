"""Symbolic booleans of the graph (`x.size(1) >= 7`) as values of the loop IR."""

from __future__ import annotations

from typing import Any

import sympy
from sympy.logic.boolalg import Boolean, BooleanFalse, BooleanTrue

from precast.lowering.build.float_values import is_real, real_value
from precast.lowering.build.lazy_tensor import alu, cast, compare
from precast.lowering.ir.nodes import Const, Index, Value
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.sizes import Unsupported


def is_truth(number: object) -> bool:
    """Whether a symbolic number is a boolean."""
    return isinstance(number, Boolean) and not isinstance(number, sympy.Symbol)


def truth_value(expr: Any) -> Value:
    """The boolean as a BOOL value. Raises Unsupported, which names the function that the IR lacks."""
    match expr:
        case BooleanTrue() | BooleanFalse():
            return Const(bool(expr), DType.BOOL)
        case sympy.Not():
            return alu(Op.NOT, truth_value(expr.args[0]))
        case sympy.And() | sympy.Or():
            first, *rest = map(truth_value, expr.args)
            for other in rest:
                first = alu(Op.AND if isinstance(expr, sympy.And) else Op.OR, first, other)
            return first
        case sympy.Eq() | sympy.Ne() | sympy.Lt() | sympy.Le():
            return compare(_COMPARISONS[type(expr)], *_sides(expr.lhs, expr.rhs))
        case sympy.Gt() | sympy.Ge():
            return compare(_COMPARISONS[type(expr.reversed)], *_sides(expr.rhs, expr.lhs))
    raise Unsupported(f"a truth about numbers of the graph, {expr}, uses {type(expr).__name__}, which precast does not know")


_COMPARISONS = {sympy.Eq: Op.EQ, sympy.Ne: Op.NE, sympy.Lt: Op.LT, sympy.Le: Op.LE}


def _sides(left: Any, right: Any) -> tuple[Value, Value]:
    """Both in one type: integers, or reals where one is."""
    if is_real(left) or is_real(right):
        return cast(real_value(left), DType.F64), cast(real_value(right), DType.F64)
    return Index(left), Index(right)
