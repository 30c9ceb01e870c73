"""Interval arithmetic on index expressions: which integers an expression can take, given the extents of its axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import sympy

from precast.lowering.ir.nodes import Axis, Size

Interval = tuple[int, int]
"""Lowest and highest value, both included."""

FLOORDIV, MODULO = ("FloorDiv", "CleanDiv", "IntTrueDiv"), ("Modulo", "Mod", "PythonMod")
"""Names of the nodes that divide integers rounding down (or exactly), and of their remainders: precast's own, and torch's."""


def ranges_of(axes: Iterable[Axis]) -> dict[sympy.Symbol, Interval]:
    """The interval of each axis whose extent is known."""
    return {a.symbol: (0, max(int(a.extent) - 1, 0)) for a in axes if isinstance(a.extent, int) or a.extent.is_Integer}


def interval(expr: Size | sympy.Basic, ranges: Mapping[sympy.Symbol, Interval] | Mapping[sympy.Symbol, Interval | None]) -> Interval | None:
    """An interval that holds every value of `expr` when each symbol lies within its range, or None where none is known.

    May be wider than the truth.
    """
    if isinstance(expr, int):
        return (expr, expr)
    if isinstance(expr, sympy.Symbol):
        return ranges.get(expr)
    if expr.is_Integer:
        number = int(cast(sympy.Integer, expr))
        return (number, number)
    args = [interval(a, ranges) for a in expr.args]
    known = [a for a in args if a is not None]
    if len(known) < len(args):
        return (0, args[1][1] - 1) if expr.func.__name__ in MODULO and args[1] is not None and args[1][0] > 0 else None
    match expr.func.__name__:
        case "Add":
            return (sum(a[0] for a in known), sum(a[1] for a in known))
        case "Mul":
            low, high = known[0]
            for a in known[1:]:
                corners = (low * a[0], low * a[1], high * a[0], high * a[1])
                low, high = min(corners), max(corners)
            return (low, high)
        case name if name in FLOORDIV and known[1][0] > 0:
            quotients = [a // b for a in known[0] for b in known[1]]
            return (min(quotients), max(quotients))
        case name if name in MODULO and known[1][0] > 0:
            (low, high), (least, most) = known
            return (low, high) if 0 <= low and high < least else (0, most - 1)
        case "Max":
            return (max(a[0] for a in known), max(a[1] for a in known))
        case "Min":
            return (min(a[0] for a in known), min(a[1] for a in known))
    return None
