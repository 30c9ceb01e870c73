"""Integer index expressions as Triton text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy

from precast.codegen.triton.render.ops import Unsupported
from precast.lowering.ir.index import is_nonnegative

Name = Callable[[sympy.Symbol], str]


def write_index(expr: sympy.Expr | int, name: Name) -> str:
    """`expr` over the names of its symbols. `//` and `%` truncate in Triton, so operands that may be negative go through a helper."""
    return _write(sympy.sympify(expr), name, 0)


def _write(expr: Any, name: Name, level: int) -> str:
    """`level`: 0 stands alone, 1 an operand of `+`, 2 of `*`, 3 of what binds tighter."""
    if isinstance(expr, sympy.Symbol):
        return name(expr)
    if expr.is_Integer:
        return str(int(expr)) if int(expr) >= 0 else f"({int(expr)})"
    if expr.is_Add:
        text = " + ".join(_write(a, name, 1) for a in _ordered(expr))
        return f"({text})" if level > 1 else text
    if expr.is_Mul:
        text = " * ".join(_write(a, name, 2) for a in _ordered(expr))
        return f"({text})" if level > 2 else text
    if expr.is_Pow and expr.args[1].is_Integer and 0 < int(expr.args[1]) <= 8:
        text = " * ".join([_write(expr.args[0], name, 2)] * int(expr.args[1]))
        return f"({text})" if level > 2 else text
    args = [_write(a, name, 3) for a in expr.args]
    match type(expr).__name__:
        case "FloorDiv":
            return f"({args[0]} // {args[1]})" if is_nonnegative(expr.args[0]) else f"floor_quotient({args[0]}, {args[1]})"
        case "Modulo" | "Mod":
            return f"({args[0]} % {args[1]})" if is_nonnegative(expr.args[0]) else f"floor_rest({args[0]}, {args[1]})"
        case "Max" | "Min" as function:
            text = args[0]
            for other in args[1:]:
                text = f"tl.{'maximum' if function == 'Max' else 'minimum'}({text}, {other})"
            return text
        case other:
            raise Unsupported(f"index expression {expr} uses {other}")


def _ordered(expr: Any) -> list[Any]:
    """Arguments in an order that does not depend on hashing; numbers last."""
    return sorted(expr.args, key=lambda a: (a.is_Integer, str(a)))
