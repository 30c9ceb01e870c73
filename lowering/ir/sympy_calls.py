"""The few sympy calls that the scheduler needs, with types."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

import sympy

from precast.lowering.ir.nodes import Size

minimum: Any = sympy.Min
maximum: Any = sympy.Max
equal: Any = sympy.Eq
at_most: Any = sympy.Le


def expand(expr: Size | sympy.Basic) -> sympy.Expr:
    """Products multiplied out."""
    return cast(sympy.Expr, cast(Any, sympy).expand(expr))


def renamed(expr: sympy.Basic, names: Mapping[sympy.Symbol, Any]) -> sympy.Expr:
    """The expression with symbols replaced, all at once."""
    return cast(sympy.Expr, cast(Any, expr).xreplace(names))


def symbols_of(expr: sympy.Basic) -> frozenset[sympy.Symbol]:
    """The symbols that the expression mentions."""
    return frozenset(cast("set[sympy.Symbol]", expr.free_symbols))


def same(a: Size | sympy.Basic, b: Size | sympy.Basic) -> bool:
    """Whether two sizes are provably equal."""
    return bool(a == b) or bool(expand(cast(Any, a) - cast(Any, b)) == 0)


@lru_cache(1 << 14)
def cannot_wrap(expr: sympy.Expr) -> bool:
    """Whether the numbers in an index expression are so small that its values stay within 64 bits, so that algebra holds."""
    return all(abs(int(cast(Any, n))) < 1 << 31 for n in expr.atoms(sympy.Integer))
