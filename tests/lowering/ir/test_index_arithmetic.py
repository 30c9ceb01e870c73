"""Index arithmetic against numpy: random chains of views, divisions that must vanish, and the evaluator."""

from __future__ import annotations

import copy
from typing import Any

import numpy
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build.lazy_tensor import Tensor
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Load, View, axis_symbol
from precast.lowering.ir.scalars import DType

I1, I0 = ix.symbol(1), ix.symbol(0)


def whole(size: tuple[int, ...]) -> Tensor:
    return Tensor(size, DType.I64, View("x", size, ix.contiguous_strides(size)))


def lazily(size: tuple[int, ...]) -> Tensor:
    """The same elements as a body, so that views must substitute."""
    return Tensor(size, DType.I64, value=whole(size).body())


def elements(t: Tensor, flat: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """The tensor's elements by evaluating its index at every point."""
    body = t.body()
    assert isinstance(body, Load)
    names = ix.symbols(t.rank)
    found = [flat[ix.evaluate(body.index, dict(zip(names, point, strict=True)))] for point in numpy.ndindex(*t.size)]
    return numpy.array(found, dtype=flat.dtype).reshape(t.size)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@st.composite
def chains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, Any]]]:
    """A size and a list of view operations that fit one after another."""
    size = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    first, steps = size, []
    for _ in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["permute", "reshape", "slice", "flip", "split", "merge"]))
        dim = draw(st.integers(0, len(size) - 1)) if size else 0
        if kind == "permute":
            argument: Any = tuple(draw(st.permutations(range(len(size)))))
            size = tuple(size[d] for d in argument)
        elif kind == "split" and len(size) < 6:
            part = draw(st.sampled_from(divisors(size[dim])))
            size = (*size[:dim], part, size[dim] // part, *size[dim + 1 :])
            kind, argument = "reshape", size
        elif kind == "merge" and dim + 1 < len(size):
            size = (*size[:dim], size[dim] * size[dim + 1], *size[dim + 2 :])
            kind, argument = "reshape", size
        elif kind == "slice":
            start = draw(st.integers(0, size[dim] - 1))
            step = draw(st.integers(1, 2))
            length = draw(st.integers(1, (size[dim] - start + step - 1) // step))
            argument = (dim, start, length, step)
            size = (*size[:dim], length, *size[dim + 1 :])
        elif kind == "flip":
            argument = dim
        else:
            total = int(numpy.prod(size))
            lead = draw(st.sampled_from(divisors(total)))
            size = (lead, total // lead)
            kind, argument = "reshape", size
        steps.append((kind, argument))
    return first, steps


def apply(t: Tensor, array: numpy.ndarray[Any, Any], kind: str, argument: Any) -> tuple[Tensor, numpy.ndarray[Any, Any]]:
    match kind:
        case "permute":
            return tx.permute(t, argument), array.transpose(argument)
        case "reshape":
            return tx.reshape(t, argument), array.reshape(argument)
        case "slice":
            dim, start, length, step = argument
            index = (slice(None),) * dim + (slice(start, start + (length - 1) * step + 1, step),)
            return tx.narrow(t, dim, start, length, step), array[index]
        case _:
            return tx.narrow(t, argument, t.size[argument] - 1, t.size[argument], -1), numpy.flip(array, argument)


@settings(max_examples=150, deadline=None)
@given(chains(), st.booleans())
def test_view_chains_agree_with_numpy(chain: tuple[tuple[int, ...], list[tuple[str, Any]]], lazy: bool) -> None:
    size, steps = chain
    array = numpy.arange(int(numpy.prod(size))).reshape(size)
    flat = array.reshape(-1) * 7 + 3
    t, expected = (lazily if lazy else whole)(size), array * 7 + 3
    for kind, argument in steps:
        t, expected = apply(t, expected, kind, argument)
        assert tuple(t.size) == expected.shape
    numpy.testing.assert_array_equal(elements(t, flat), expected)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=4), st.data())
def test_splits_and_merges_of_contiguous_memory_stay_affine(size: list[int], data: st.DataObject) -> None:
    """Whatever chain of splits and merges: one affine index at the end, and a window all along."""
    t, lazy = whole(tuple(size)), lazily(tuple(size))
    for _ in range(4):
        total = int(numpy.prod(size))
        parts: list[int] = []
        while total > 1 and len(parts) < 3:
            parts.append(data.draw(st.sampled_from(divisors(total))))
            total //= parts[-1]
        parts.append(total)
        t, lazy = tx.reshape(t, tuple(parts)), tx.reshape(lazy, tuple(parts))
        assert t.window is not None
        body = lazy.body()
        assert isinstance(body, Load) and not ix.has_division(body.index), body.index
        assert body.index == t.body().index  # type: ignore[union-attr]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(-20, 40), st.integers(1, 12), st.integers(1, 30), st.integers(-3, 6))
def test_divisions_keep_their_value(m: int, n: int, offset: int, factor: int, divisor: int, other: int) -> None:
    extents = ix.extents_of((m, n))
    expr = I1 * factor + I0 * other + offset
    for build, reference in ((ix.floordiv, lambda x: x // divisor), (ix.modulo, lambda x: x % divisor)):
        found = build(expr, divisor, extents)
        nested = ix.simplify(ix.FloorDiv(ix.Modulo(expr, sympy.Integer(divisor)), sympy.Integer(2)) * 2 + found, extents)
        for i in range(m):
            for j in range(n):
                value = i * factor + j * other + offset
                assert ix.evaluate(found, {I1: i, I0: j}) == reference(value)
                assert ix.evaluate(nested, {I1: i, I0: j}) == value % divisor // 2 * 2 + reference(value)


F, M = ix.FloorDiv, ix.Modulo
DIVIDED: dict[str, tuple[Any, int, tuple[int, int]]] = {
    "a quotient's quotient": (F(I1 * 5 + I0, sympy.Integer(3)), 4, (9, 5)),
    "a remainder's remainder": (M(I1 * 5 + I0, sympy.Integer(7)), 3, (5, 5)),
    "a remainder's remainder by a divisor of its own": (M(I1 * 5 + I0, sympy.Integer(12)), 4, (5, 5)),
    "a row as long as the common factor": (I1 * 4 + I0, 12, (6, 4)),
    "a row longer than the common factor": (I1 * 4 + I0, 12, (6, 5)),
    "all in one multiple, not the first": (F(I1 + 20, sympy.Integer(3)) + F(I0 + 20, sympy.Integer(7)), 4, (2, 1)),
    "all in one multiple below zero": (F(I1 - 20, sympy.Integer(3)) + F(I0 - 20, sympy.Integer(7)), 13, (2, 1)),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_divisions_of_divisions_keep_their_value(name: str) -> None:
    """The references divide by Python's own operators, term by term."""
    expr, divisor, size = DIVIDED[name]
    extents = ix.extents_of(size)
    for i in range(size[0]):
        for j in range(size[1]):
            at = {I1: i, I0: j}
            value = ix.evaluate(expr, at)
            assert ix.evaluate(ix.floordiv(expr, divisor, extents), at) == value // divisor
            assert ix.evaluate(ix.modulo(expr, divisor, extents), at) == value % divisor
            assert ix.evaluate(F(expr, sympy.Integer(divisor)), at) == value // divisor


N = sympy.Symbol("n", integer=True, positive=True)

VANISH = [
    ((I1 * 12 + I0) // 1, 12, (5, 12), I1, I0),
    (I1 * 12 + I0 + 24, 12, (5, 12), I1 + 2, I0),
    (I1 * 24 + I0 * 2, 24, (5, 12), I1, I0 * 2),
    (I1 * N + I0, N, (5, N), I1, I0),
    (I0, 7, (5, 7), sympy.S.Zero, I0),
]


@pytest.mark.parametrize("expr, divisor, size, quotient, remainder", VANISH)
def test_divisions_vanish_under_ranges(expr: Any, divisor: Any, size: Any, quotient: Any, remainder: Any) -> None:
    assert ix.floordiv(expr, divisor, ix.extents_of(size)) == quotient
    assert ix.modulo(expr, divisor, ix.extents_of(size)) == remainder


def test_quotient_and_remainder_merge() -> None:
    extents = ix.extents_of((3, 96))
    expr = 8 * ix.FloorDiv(I0, sympy.Integer(8)) + ix.Modulo(I0, sympy.Integer(8)) + 96 * I1
    assert ix.simplify(expr, extents) == I0 + 96 * I1


def test_symbolic_reshape_is_affine() -> None:
    """[n, 12, 64] and [n, 768] are the same memory, whatever n is."""
    for old, new in (((N, 12, 64), (N, 768)), ((N, 768), (N, 12, 64)), ((2, N, 4), (2 * N, 4))):
        index = ix.linear_index(old, ix.reshape_index(old, new))
        flat = ix.linear_index(new, ix.symbols(len(new)))
        assert sympy.expand(ix.simplify(sympy.expand(index), ix.extents_of(new)) - flat) == 0, (old, new)


@pytest.mark.parametrize("name", ["i0", "r0", "x1"])
def test_symbols_of_other_libraries_are_not_those_of_axes(name: str) -> None:
    """sympy gives out remembered expressions over equal symbols: Inductor has an `i0` of the same assumptions."""
    theirs: Any = sympy.Symbol.__xnew__(sympy.Symbol, name, integer=True, nonnegative=True)  # type: ignore[attr-defined]
    remembered = [theirs * 7919, theirs + 7919, sympy.expand(7 * (theirs + 7919))]
    ours: Any = axis_symbol(name)
    made = [ours * 7919, ours + 7919, sympy.expand(7 * (ours + 7919))]
    assert theirs != ours and all(a != b for a, b in zip(made, remembered, strict=True))
    assert all(symbol is ours for expr in made for symbol in expr.free_symbols)
    assert copy.deepcopy(ours) is ours
