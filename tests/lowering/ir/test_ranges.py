"""Intervals of index expressions hold every value that the expression takes, and are not wider than they have to be."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, axis_symbol
from precast.lowering.ir.ranges import interval, ranges_of

A, B = axis_symbol("i1"), axis_symbol("i0")
AXES = (Axis(A, 5), Axis(B, 4))


def values(expr: Any) -> list[int]:
    return [ix.evaluate(expr, {A: i, B: j}) for i, j in product(range(5), range(4))]


def minimum(a: Any, b: Any) -> Any:
    return sympy.Min(a, b)


def maximum(a: Any, b: Any) -> Any:
    return sympy.Max(a, b)


@pytest.mark.parametrize(
    "expr",
    [
        A,
        B,
        A + B,
        A - B,
        3 * A - 2 * B + 1,
        -2 * A,
        (A - 2) * -3,
        ix.FloorDiv(A, sympy.Integer(2)),
        ix.FloorDiv(A - 3, sympy.Integer(2)),
        ix.FloorDiv(B - A, sympy.Integer(3)),
        ix.Modulo(A, sympy.Integer(5)),
        ix.Modulo(A + 3, sympy.Integer(4)),
        ix.Modulo(A, sympy.Integer(4)),
        ix.Modulo(A - 2, sympy.Integer(3)),
        maximum(A, 2),
        maximum(A, sympy.Integer(-1)),
        minimum(A, 2),
    ],
    ids=str,
)
def test_the_ends_are_taken(expr: Any) -> None:
    found = values(expr)
    assert interval(expr, ranges_of(AXES)) == (min(found), max(found))


def test_what_is_known_of_axes() -> None:
    size = sympy.Symbol("s0", integer=True, positive=True)
    assert ranges_of((Axis(A, 5), Axis(B, size))) == {A: (0, 4)}
    assert ranges_of((Axis(A, 0),)) == {A: (0, 0)}
    assert interval(A + B, {A: (0, 4)}) is None and interval(7, {}) == (7, 7)


def test_a_remainder_is_bounded_whatever_is_divided() -> None:
    size = sympy.Symbol("s0", integer=True, positive=True)
    assert interval(ix.Modulo(size, sympy.Integer(4)), {}) == (0, 3)
    assert interval(ix.Modulo(A + size, B + 2), {B: (0, 3)}) == (0, 4)
    assert interval(ix.FloorDiv(size, sympy.Integer(4)), {}) is None


def test_a_divisor_may_vary() -> None:
    assert interval(ix.FloorDiv(A, B + 1), {A: (-6, 5), B: (0, 3)}) == (-6, 5)
    assert interval(ix.FloorDiv(A, B), {A: (-6, 5), B: (0, 3)}) is None, "it may be zero"


@st.composite
def expressions(draw: Any, depth: int = 0) -> Any:
    if depth == 3 or draw(st.booleans()):
        return draw(st.integers(-4, 4)) * A + draw(st.integers(-4, 4)) * B + draw(st.integers(-9, 9))
    kind = draw(st.sampled_from(("+", "*", "//", "%", "min", "max")))
    a = draw(expressions(depth + 1))
    if kind in ("//", "%"):
        divisor = sympy.Integer(draw(st.integers(1, 7)))
        return ix.FloorDiv(sympy.sympify(a), divisor) if kind == "//" else ix.Modulo(sympy.sympify(a), divisor)
    b = draw(expressions(depth + 1))
    return a + b if kind == "+" else a * b if kind == "*" else minimum(a, b) if kind == "min" else maximum(a, b)


@settings(max_examples=150, deadline=None)
@given(expressions())
def test_every_value_lies_between(expr: Any) -> None:
    found = interval(sympy.sympify(expr), ranges_of(AXES))
    assert found is not None or sympy.sympify(expr).atoms(sympy.Pow), "only powers have no interval"
    assert found is None or all(found[0] <= value <= found[1] for value in values(sympy.sympify(expr)))


@pytest.mark.parametrize(("a", "b"), [(-7, 2), (7, 2), (-8, 4), (-1, 5), (0, 3)])
def test_quotients_and_remainders_of_numbers_round_down(a: int, b: int) -> None:
    assert ix.FloorDiv(sympy.Integer(a), sympy.Integer(b)) == a // b
    assert ix.Modulo(sympy.Integer(a), sympy.Integer(b)) == a % b


@pytest.mark.parametrize(("size", "strides"), [((2, 3), (3, 1)), ((2, 0, 3), (3, 3, 1)), ((0, 4), (4, 1)), ((), ()), ((5, 1), (1, 1))])
def test_strides_of_rows(size: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert ix.contiguous_strides(size) == strides
