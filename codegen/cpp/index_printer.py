"""Index expressions as text of C++: integers, conditions, and real numbers over sizes."""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from precast.codegen.common.index_facts import is_floordiv, is_modulo, kind
from precast.codegen.cpp.types import float_literal
from precast.lowering.ir.ranges import Interval, interval

INT32 = 2**31 - 1
SHORT = 40
"""Characters of an operand up to which the larger of two is written as a comparison in place."""


ROUNDINGS = {
    "CeilToInt": "__builtin_ceil",
    "FloorToInt": "__builtin_floor",
    "TruncToInt": "__builtin_trunc",
    "RoundToInt": "__builtin_nearbyint",
}
RELATIONS = {
    "Equality": "==", "Unequality": "!=", "StrictLessThan": "<", "LessThan": "<=", "StrictGreaterThan": ">", "GreaterThan": ">=",
}  # fmt: skip
REALS = {"Add": " + ", "Mul": " * ", "IntTrueDiv": " / ", "FloatTrueDiv": " / "}
LIBM = ("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")


class IndexPrinter:
    """Prints index expressions over named C++ variables.

    `ranges` proves operands of `//` and `%` non-negative, where C's own operators do; elsewhere floor helpers are called.
    """

    def __init__(self, ranges: Mapping[sympy.Symbol, Interval | None]) -> None:
        self.ranges = ranges

    def print(self, expr: sympy.Basic, names: Mapping[sympy.Symbol, str]) -> str:
        """`expr` as a C++ expression, parenthesised where it is neither atomic nor a product."""
        if isinstance(expr, sympy.Integer):
            number = int(expr)
            return str(number) if abs(number) <= INT32 else f"INT64_C({number})"
        if isinstance(expr, sympy.Symbol):
            return names[expr]
        if isinstance(expr, sympy.Add):
            return "(" + " + ".join(self.print(a, names) for a in expr.args) + ")"
        if isinstance(expr, sympy.Mul):
            return "*".join(self.print(a, names) for a in expr.args)
        if isinstance(expr, sympy.Pow) and isinstance(expr.exp, sympy.Integer) and int(expr.exp) > 0:
            return "*".join([self.print(expr.base, names)] * int(expr.exp))
        if isinstance(expr, sympy.Max | sympy.Min):
            return self._extreme(expr, names)
        if is_floordiv(expr) or is_modulo(expr):
            return self._division(expr, names)
        if isinstance(expr, sympy.Piecewise):
            text = "0"
            for pair in reversed(expr.args):
                value, condition = pair.args
                text = f"({self.truth(condition, names)} ? {self.print(value, names)} : {text})"
            return text
        if kind(expr) in ROUNDINGS:
            return f"(int64_t){ROUNDINGS[kind(expr)]}({self.real(expr.args[0], names)})"
        raise TypeError(f"index expression {expr} holds {kind(expr)}, which has no C++ form")

    def truth(self, expr: sympy.Basic, names: Mapping[sympy.Symbol, str]) -> str:
        """A condition over sizes as a C++ bool."""
        if expr in (sympy.true, sympy.false):
            return "true" if expr is sympy.true else "false"
        if isinstance(expr, sympy.Rel):
            side = self.print if all(a.is_integer for a in expr.args) else self.real
            left, right = (side(a, names) for a in expr.args)
            return f"({left} {RELATIONS[kind(expr)]} {right})"
        if isinstance(expr, sympy.Not):
            return f"!{self.truth(expr.args[0], names)}"
        if isinstance(expr, sympy.And | sympy.Or):
            return "(" + (" && " if isinstance(expr, sympy.And) else " || ").join(self.truth(a, names) for a in expr.args) + ")"
        raise TypeError(f"the condition {expr} holds {kind(expr)}, which has no C++ form")

    def real(self, expr: sympy.Basic, names: Mapping[sympy.Symbol, str]) -> str:
        """A real number over sizes as a C++ double, computed as Python does."""
        if expr.is_number:
            return float_literal(float(expr), False)  # type: ignore[arg-type]
        if expr.is_integer:
            text = self.print(expr, names)
            return f"(double)({text})" if isinstance(expr, sympy.Mul | sympy.Pow) else f"(double){text}"
        if isinstance(expr, sympy.Symbol):
            return names[expr]
        args = [self.real(a, names) for a in expr.args]
        name = kind(expr).removeprefix("OpaqueUnaryFn_")
        if name in REALS:
            return f"({REALS[name].join(args)})"
        if name in ("Pow", "FloatPow"):
            return f"__builtin_pow({', '.join(args)})"
        if name == "ToFloat":
            return args[0]
        if name == "TruncToFloat":
            return f"__builtin_trunc({args[0]})"
        if name == "Abs":
            return f"__builtin_fabs({args[0]})"
        if name in LIBM:
            return f"__builtin_{name}({args[0]})"
        raise TypeError(f"the number {expr} holds {name}, which has no C++ form")

    def _extreme(self, expr: sympy.Basic, names: Mapping[sympy.Symbol, str]) -> str:
        largest = isinstance(expr, sympy.Max)
        texts = [self.print(a, names) for a in expr.args]
        if len(texts) == 2 and max(map(len, texts)) <= SHORT:
            left, right = texts
            return f"({left} {'>' if largest else '<'} {right} ? {left} : {right})"
        function = "max_index" if largest else "min_index"
        while len(texts) > 1:  # each text once: written out, dozens of sizes would double it each time
            texts = [
                f"{function}({', '.join(pair)})" if len(pair) == 2 else pair[0]
                for pair in (texts[n : n + 2] for n in range(0, len(texts), 2))
            ]
        return texts[0]

    def _division(self, expr: sympy.Basic, names: Mapping[sympy.Symbol, str]) -> str:
        left, right = expr.args
        a, b = self.print(left, names), self.print(right, names)
        if isinstance(right, sympy.Mul | sympy.Pow):
            b = f"({b})"  # a product behind `/` or `%` would be taken apart
        low = interval(left, self.ranges)
        plain = low is not None and low[0] >= 0 or bool(left.is_nonnegative)
        if is_floordiv(expr):
            return f"({a} / {b})" if plain else f"floordiv_index({a}, {b})"
        return f"({a} % {b})" if plain else f"modulo_index({a}, {b})"


INDEX_HELPERS = r"""
INLINE int64_t max_index(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t min_index(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t floordiv_index(int64_t a, int64_t b) { const int64_t q = a / b; return q - (a % b < 0); }
INLINE int64_t modulo_index(int64_t a, int64_t b) { const int64_t r = a % b; return r < 0 ? r + b : r; }
"""
