"""Simplified kernels compute the same, bit for bit, at the edges above all; and what the ranges decide is decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.lowering.ir.nodes import Alu, Cast, Const, Gather, Index, Kernel, Load, Program, Value, axis_symbol
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.passes.simplify.algebra import simplify
from precast.lowering.verify.interpret import run
from tests.lowering.hand_made_programs import Build

ROWS, COLUMNS = 5, 3
TRUE, FALSE = Const(True, DType.BOOL), Const(False, DType.BOOL)
X = [[0.0, -0.0, 1.5], [-2.5, float("inf"), float("nan")], [3e38, -1.0, 1e-45], [7.0, -7.0, 0.5], [2.0, -float("inf"), 4.0]]


def program_of(body: Callable[[Build, Any, Any], Value], dtype: DType) -> Program:
    b = Build()
    b.input("x", ROWS, COLUMNS)
    b.input("n", ROWS, COLUMNS, dtype=DType.I64)
    b.input("h", ROWS, COLUMNS, dtype=DType.BF16)
    b.kernel("y", (ROWS, COLUMNS), lambda i, j: body(b, i, j), dtype)
    return b.program("y")


def inputs() -> list[torch.Tensor]:
    n = torch.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) - 7
    return [torch.tensor(X), n, torch.tensor(X).clamp(-1e30, 1e30).bfloat16()]


def value_of(program: Program) -> Value:
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
    return kernel.stores[0].value


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.view(torch.int32)
        if tensor.dtype == torch.float32
        else tensor.view(torch.int16)
        if tensor.dtype == torch.bfloat16
        else tensor
    )


def boolean(op: Op, *args: Value) -> Value:
    return Alu(op, args, DType.BOOL)


def where(condition: Value, a: float = 1.0, b: float = -1.0) -> Value:
    return Alu(Op.WHERE, (condition, Const(a, DType.F32), Const(b, DType.F32)), DType.F32)


def position(expr: Any) -> Value:
    return Index(sympy.sympify(expr))


def number(value: int) -> Value:
    return Const(value, DType.I64)


def at(index: Value, size: int = ROWS, wraps: bool = True) -> Value:
    """`x[index, 0]`."""
    symbol = axis_symbol("g0")
    return Load("x", COLUMNS * symbol, DType.F32, (Gather(symbol, index, size, True, wraps),))


Body = Callable[[Build, Any, Any], Value]
COMPARISONS: list[tuple[str, Op, Callable[[Any, Any], tuple[Any, Any]], bool | None]] = [
    ("less than the extent", Op.LT, lambda i, j: (i, ROWS), True),
    ("less than the highest", Op.LT, lambda i, j: (i, ROWS - 1), None),
    ("less than the lowest", Op.LT, lambda i, j: (i, 0), False),
    ("less than one", Op.LT, lambda i, j: (i, 1), None),
    ("at most the highest", Op.LE, lambda i, j: (i, ROWS - 1), True),
    ("at most one below", Op.LE, lambda i, j: (i, ROWS - 2), None),
    ("at most the lowest", Op.LE, lambda i, j: (i, 0), None),
    ("at most below", Op.LE, lambda i, j: (i, -1), False),
    ("equal to the lowest", Op.EQ, lambda i, j: (i, 0), None),
    ("equal to the highest", Op.EQ, lambda i, j: (i, ROWS - 1), None),
    ("equal to the extent", Op.EQ, lambda i, j: (i, ROWS), False),
    ("equal to below", Op.EQ, lambda i, j: (i, -1), False),
    ("equal to itself", Op.EQ, lambda i, j: (i + 1, 1 + i), True),
    ("other than the lowest", Op.NE, lambda i, j: (i, 0), None),
    ("other than the highest", Op.NE, lambda i, j: (i, ROWS - 1), None),
    ("other than the extent", Op.NE, lambda i, j: (i, ROWS), True),
    ("other than below", Op.NE, lambda i, j: (i, -1), True),
    ("other than itself", Op.NE, lambda i, j: (2 * i, i + i), False),
    ("of two axes, open", Op.LT, lambda i, j: (i, j + 3), None),
    ("of two axes, decided", Op.LT, lambda i, j: (i, j + 5), True),
    ("of two axes, equal at the end", Op.LE, lambda i, j: (i, j + 4), True),
    ("of two axes, falling", Op.LT, lambda i, j: (j - i, COLUMNS), True),
    ("of two axes, falling, open", Op.LT, lambda i, j: (j - i, COLUMNS - 1), None),
    ("a product of falling ones", Op.LE, lambda i, j: (-2 * i, 0), True),
    ("a product of falling ones, open", Op.LT, lambda i, j: (-2 * i, 0), None),
]


@pytest.mark.parametrize(("op", "sides", "decided"), [row[1:] for row in COMPARISONS], ids=[row[0] for row in COMPARISONS])
@pytest.mark.parametrize("swapped", [False, True])
def test_comparisons_of_positions(op: Op, sides: Callable[[Any, Any], tuple[Any, Any]], decided: bool | None, swapped: bool) -> None:
    def body(b: Build, i: Any, j: Any) -> Value:
        a, c = map(position, sides(i, j))
        return boolean(op, c, a) if swapped else boolean(op, a, c)

    program = program_of(body, DType.BOOL)
    found = simplify(program)
    assert torch.equal(run(program, inputs())[0], run(found, inputs())[0])
    if not swapped:
        assert value_of(found) is (value_of(program) if decided is None else TRUE if decided else FALSE)


def load(b: Build, i: Any, j: Any) -> Value:
    return b.load("x", i, j)


def integer(b: Build, i: Any, j: Any) -> Value:
    return b.load("n", i, j)


def f32(op: Op, *args: Value) -> Value:
    return Alu(op, args, DType.F32)


def i64(op: Op, *args: Value) -> Value:
    return Alu(op, args, DType.I64)


BIG = 1 << 62
SAME: dict[str, tuple[DType, Body]] = {
    "x + 0.0": (DType.F32, lambda b, i, j: f32(Op.ADD, load(b, i, j), Const(0.0, DType.F32))),
    "x - 0.0": (DType.F32, lambda b, i, j: f32(Op.SUB, load(b, i, j), Const(0.0, DType.F32))),
    "x - (-0.0)": (DType.F32, lambda b, i, j: f32(Op.SUB, load(b, i, j), Const(-0.0, DType.F32))),
    "x * 1": (DType.F32, lambda b, i, j: f32(Op.MUL, load(b, i, j), Const(1.0, DType.F32))),
    "1 * x": (DType.F32, lambda b, i, j: f32(Op.MUL, Const(1.0, DType.F32), load(b, i, j))),
    "x / 1": (DType.F32, lambda b, i, j: f32(Op.DIV, load(b, i, j), Const(1.0, DType.F32))),
    "x * -1": (DType.F32, lambda b, i, j: f32(Op.MUL, load(b, i, j), Const(-1.0, DType.F32))),
    "n + 0": (DType.I64, lambda b, i, j: i64(Op.ADD, integer(b, i, j), number(0))),
    "n - 0": (DType.I64, lambda b, i, j: i64(Op.SUB, integer(b, i, j), number(0))),
    "positions added": (DType.I64, lambda b, i, j: i64(Op.ADD, position(i), position(3 * j))),
    "positions subtracted": (DType.I64, lambda b, i, j: i64(Op.SUB, position(i), position(3 * j))),
    "positions multiplied": (DType.I64, lambda b, i, j: i64(Op.MUL, position(i + 1), number(-3))),
    "product of positions": (DType.I64, lambda b, i, j: i64(Op.MUL, position(i + 1), position(j - 2))),
    "the sum overflows": (DType.I64, lambda b, i, j: i64(Op.ADD, number(BIG), number(BIG))),
    "the sum is the lowest": (DType.I64, lambda b, i, j: i64(Op.SUB, number(-BIG), number(BIG))),
    "the sum is the highest": (DType.I64, lambda b, i, j: i64(Op.ADD, number(BIG), number(BIG - 1))),
    "the product overflows": (DType.I64, lambda b, i, j: i64(Op.MUL, number(BIG), number(3))),
    "folded less": (DType.BOOL, lambda b, i, j: boolean(Op.LT, number(3), number(3))),
    "folded at most": (DType.BOOL, lambda b, i, j: boolean(Op.LE, number(3), number(3))),
    "folded equal": (DType.BOOL, lambda b, i, j: boolean(Op.EQ, number(3), number(4))),
    "folded other": (DType.BOOL, lambda b, i, j: boolean(Op.NE, number(3), number(4))),
    "true chosen": (DType.F32, lambda b, i, j: where(TRUE)),
    "false chosen": (DType.F32, lambda b, i, j: where(FALSE)),
    "chosen by position": (DType.F32, lambda b, i, j: where(boolean(Op.LT, position(i), position(ROWS)))),
    "chosen by the last position": (DType.F32, lambda b, i, j: where(boolean(Op.LT, position(i), position(ROWS - 1)))),
    "a choice of booleans": (DType.BOOL, lambda b, i, j: boolean(Op.WHERE, boolean(Op.LT, position(i), position(j)), TRUE, FALSE)),
    "a choice of booleans, turned": (DType.BOOL, lambda b, i, j: boolean(Op.WHERE, boolean(Op.LT, position(i), position(j)), FALSE, TRUE)),
    "and": (
        DType.BOOL,
        lambda b, i, j: boolean(Op.AND, boolean(Op.LT, position(i), position(j)), boolean(Op.LT, position(i), position(2))),
    ),
    "and true": (DType.BOOL, lambda b, i, j: boolean(Op.AND, boolean(Op.LT, position(i), position(j)), TRUE)),
    "and false": (DType.BOOL, lambda b, i, j: boolean(Op.AND, FALSE, boolean(Op.LT, position(i), position(j)))),
    "or true": (DType.BOOL, lambda b, i, j: boolean(Op.OR, boolean(Op.LT, position(i), position(j)), TRUE)),
    "or false": (DType.BOOL, lambda b, i, j: boolean(Op.OR, FALSE, boolean(Op.LT, position(i), position(j)))),
    "not": (DType.BOOL, lambda b, i, j: boolean(Op.NOT, boolean(Op.LT, position(i), position(j)))),
    "not not": (DType.BOOL, lambda b, i, j: boolean(Op.NOT, boolean(Op.NOT, boolean(Op.LT, position(i), position(j))))),
    "not true": (DType.BOOL, lambda b, i, j: boolean(Op.NOT, TRUE)),
    "not false": (DType.BOOL, lambda b, i, j: boolean(Op.NOT, FALSE)),
    "bits of a number and itself": (DType.I64, lambda b, i, j: i64(Op.AND, integer(b, i, j), integer(b, i, j))),
    "two to a boolean": (DType.BOOL, lambda b, i, j: Cast(number(2), DType.BOOL)),
    "none to a boolean": (DType.BOOL, lambda b, i, j: Cast(number(0), DType.BOOL)),
    "a large number to a float": (DType.F32, lambda b, i, j: Cast(number((1 << 24) + 1), DType.F32)),
    "a number that a double rounds to a float": (DType.F32, lambda b, i, j: Cast(number((1 << 54) + (1 << 30) + 1), DType.F32)),
    "a number to a float": (DType.F32, lambda b, i, j: Cast(number((1 << 24) - 1), DType.F32)),
    "rounded to a half": (DType.F32, lambda b, i, j: Cast(Cast(load(b, i, j), DType.BF16), DType.F32)),
    "a half": (DType.F32, lambda b, i, j: Cast(b.load("h", i, j), DType.BF16)),
    "a wrapped small integer": (DType.I64, lambda b, i, j: Cast(Cast(number(300), DType.U8), DType.I64)),
    "x / 1 of a number": (DType.F32, lambda b, i, j: f32(Op.DIV, Cast(integer(b, i, j), DType.F32), Const(1.0, DType.F32))),
    "a large number / 1": (
        DType.I64,
        lambda b, i, j: Cast(f32(Op.DIV, number((1 << 24) + 1), Const(1.0, DType.F32)), DType.I64),
    ),
    "a known position": (DType.F32, lambda b, i, j: at(position(i))),
    "a position from the end": (DType.F32, lambda b, i, j: at(position(i - ROWS))),
    "positions on both sides": (DType.F32, lambda b, i, j: at(position(i - 2))),
    "the last position": (DType.F32, lambda b, i, j: at(number(ROWS - 1))),
    "a masked load": (
        DType.F32,
        lambda b, i, j: Load("x", COLUMNS * i + j + 1, DType.F32, (), boolean(Op.LT, position(j), position(COLUMNS - 1))),
    ),
    "a load masked away": (DType.F32, lambda b, i, j: Load("x", COLUMNS * i + j + 999, DType.F32, (), FALSE)),
    "a load with an open mask": (DType.F32, lambda b, i, j: Load("x", COLUMNS * i + j, DType.F32, (), TRUE)),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_to_the_bit(name: str) -> None:
    dtype, body = SAME[name]
    program = program_of(body, dtype)
    wanted, found = run(program, inputs())[0], run(simplify(program), inputs())[0]
    assert torch.equal(bits(wanted), bits(found))


def test_less_work_where_nothing_is_lost() -> None:
    """A rule that does nothing computes the same, too."""
    for name in ("x - 0.0", "x * 1", "1 * x", "x / 1"):
        assert isinstance(value_of(simplify(program_of(SAME[name][1], DType.F32))), Load), name
    for name in ("true chosen", "false chosen", "chosen by position"):
        assert isinstance(value_of(simplify(program_of(SAME[name][1], DType.F32))), Const), name
    for name in ("positions added", "positions subtracted", "positions multiplied"):
        assert isinstance(value_of(simplify(program_of(SAME[name][1], DType.I64))), Index), name
    assert isinstance(value_of(simplify(program_of(SAME["a load masked away"][1], DType.F32))), Const)
    opened = value_of(simplify(program_of(SAME["a load with an open mask"][1], DType.F32)))
    assert isinstance(opened, Load) and opened.mask is None
    known = value_of(simplify(program_of(SAME["a known position"][1], DType.F32)))
    assert isinstance(known, Load) and not known.gathers


@pytest.mark.parametrize("wraps", [True, False])
@pytest.mark.parametrize("place", [ROWS, ROWS + 1, -ROWS - 1, "i + 1", "i - 6"])
def test_a_known_position_outside_is_still_an_index_error(place: Any, wraps: bool) -> None:
    def body(b: Build, i: Any, j: Any) -> Value:
        return at(number(place) if isinstance(place, int) else position(i + int(place[1:].replace(" ", ""))), wraps=wraps)

    program = program_of(body, DType.F32)
    for version in (program, simplify(program)):
        with pytest.raises(IndexError):
            run(version, inputs())


def test_a_position_below_zero_that_does_not_wrap_is_an_index_error() -> None:
    program = program_of(lambda b, i, j: at(position(i - 1), wraps=False), DType.F32)
    for version in (program, simplify(program)):
        with pytest.raises(IndexError):
            run(version, inputs())


def test_a_product_of_positions_may_wrap() -> None:
    """Positions are small; their products are left to the arithmetic of the machine."""
    program = program_of(lambda b, i, j: i64(Op.MUL, position(i), position(j)), DType.I64)
    assert value_of(simplify(program)) is value_of(program)


@st.composite
def conditions(draw: Any, depth: int = 0) -> Any:
    """A boolean tree, as a function of the two positions."""
    if depth == 3 or draw(st.booleans()):
        op = draw(st.sampled_from((Op.LT, Op.LE, Op.EQ, Op.NE)))
        a, b, c, d = (draw(st.integers(-3, 3)) for _ in range(4))
        k = draw(st.integers(-9, 9))
        return lambda i, j: boolean(op, position(a * i + b * j), position(c * i + d * j + k))
    kind = draw(st.sampled_from(("and", "or", "not", "where", "true", "false")))
    if kind in ("true", "false"):
        return lambda i, j: TRUE if kind == "true" else FALSE
    parts = [draw(conditions(depth + 1)) for _ in range(3)]
    if kind == "not":
        return lambda i, j: boolean(Op.NOT, parts[0](i, j))
    if kind == "where":
        return lambda i, j: boolean(Op.WHERE, *(part(i, j) for part in parts))
    return lambda i, j: boolean(Op.AND if kind == "and" else Op.OR, parts[0](i, j), parts[1](i, j))


@settings(max_examples=150, deadline=None)
@given(conditions())
def test_conditions_of_positions(make: Any) -> None:
    program = program_of(lambda b, i, j: make(i, j), DType.BOOL)
    assert torch.equal(run(program, inputs())[0], run(simplify(program), inputs())[0])
