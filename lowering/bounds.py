"""Interval arithmetic on index expressions: which integers an expression can take, given the extents of its axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import sympy

from precast.lowering.ir import Axis, Size

Interval = tuple[int, int]
"""Lowest and highest value, both included."""


def ranges_of(axes: Iterable[Axis]) -> dict[sympy.Symbol, Interval]:
    """The interval of each axis whose extent is known."""
    return {a.symbol: (0, max(int(a.extent) - 1, 0)) for a in axes if isinstance(a.extent, int) or a.extent.is_Integer}


def interval(expr: Size | sympy.Basic, ranges: Mapping[sympy.Symbol, Interval]) -> Interval | None:
    """An interval that contains every value of `expr`, or None where none is known. It may be wider than necessary."""
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
        return None
    match expr.func.__name__:
        case "Add":
            return (sum(a[0] for a in known), sum(a[1] for a in known))
        case "Mul":
            low, high = known[0]
            for a in known[1:]:
                corners = (low * a[0], low * a[1], high * a[0], high * a[1])
                low, high = min(corners), max(corners)
            return (low, high)
        case "FloorDiv" if known[1][0] == known[1][1] > 0:
            return (known[0][0] // known[1][0], known[0][1] // known[1][0])
        case "Modulo" | "Mod" if known[1][0] == known[1][1] > 0:
            (low, high), size = known[0], known[1][0]
            return (low, high) if 0 <= low and high < size else (0, size - 1)
        case "Max":
            return (max(a[0] for a in known), max(a[1] for a in known))
        case "Min":
            return (min(a[0] for a in known), min(a[1] for a in known))
    return None
