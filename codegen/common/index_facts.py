"""Facts about index expressions: their symbols, their kinds of nodes, and strides along an axis."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from precast.lowering.ir.ranges import FLOORDIV, MODULO


def free_symbols(expr: sympy.Basic) -> frozenset[sympy.Symbol]:
    """The symbols of an expression."""
    return frozenset(s for s in expr.free_symbols if isinstance(s, sympy.Symbol))


def replace_symbols(expr: sympy.Expr, mapping: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """`expr` with symbols replaced, all at once."""
    replaced: sympy.Expr = expr.xreplace(dict(mapping))  # type: ignore[no-untyped-call]
    return replaced


def subexpressions(expr: sympy.Expr) -> list[sympy.Basic]:
    """Every node of `expr`, itself included."""
    return list(sympy.preorder_traversal(expr))  # type: ignore[no-untyped-call]


def kind(expr: sympy.Basic) -> str:
    """Name of the function node: the lowering's `FloorDiv`/`Modulo` are matched by name, which also takes torch's own twins."""
    return type(expr).__name__


def is_floordiv(expr: sympy.Basic) -> bool:
    """Whether a node divides integers, rounding down (or exactly, which is the same)."""
    return kind(expr) in FLOORDIV


def is_modulo(expr: sympy.Basic) -> bool:
    """Whether a node is the remainder of such a division, which has the divisor's sign."""
    return kind(expr) in MODULO


def stride_along(expr: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """Constant step of `expr` when `symbol` grows by one; None where it is not constant (under `//`, `%`, a product)."""
    if symbol not in expr.free_symbols:
        return sympy.S.Zero
    if expr == symbol:
        return sympy.S.One
    if isinstance(expr, sympy.Add):
        total: sympy.Expr = sympy.S.Zero
        for term in expr.args:
            step = stride_along(term, symbol)
            if step is None:
                return None
            total = total + step
        return total
    if isinstance(expr, sympy.Mul):
        holding = [a for a in expr.args if symbol in a.free_symbols]
        if len(holding) != 1:
            return None
        step = stride_along(holding[0], symbol)
        return None if step is None else step * sympy.Mul(*(a for a in expr.args if a is not holding[0]))
    return None
