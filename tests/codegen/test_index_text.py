"""Index expressions written as C++ and as Triton give the numbers that they stand for, below zero too, where both languages truncate."""

from __future__ import annotations

import ctypes
import random
import subprocess
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
from torch.utils._sympy.functions import FloatTrueDiv

from precast.codegen.cpp.body import Body
from precast.codegen.cpp.index_printer import INDEX_HELPERS, IndexPrinter
from precast.codegen.cpp.types import literal
from precast.codegen.triton.render.index_printer import write_index
from precast.codegen.triton.render.lanes import Lanes
from precast.codegen.triton.render.ops import HELPERS
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Axis, axis_symbol
from precast.lowering.ir.ranges import interval
from precast.lowering.ir.scalars import DType

A, B = axis_symbol("i1"), axis_symbol("i0")
SIZE = sympy.Symbol("s0", integer=True, positive=True)
EXTENTS, VALUE = (6, 5), 7
POINTS = [{A: a, B: b, SIZE: VALUE} for a, b in product(range(EXTENTS[0]), range(EXTENTS[1]))]
NAMES = {A: "a", B: "b", SIZE: "s"}
RANGES: dict[sympy.Symbol, tuple[int, int] | None] = {A: (0, EXTENTS[0] - 1), B: (0, EXTENTS[1] - 1), SIZE: None}


def quotient(a: Any, b: Any) -> Any:
    return ix.FloorDiv(sympy.sympify(a), sympy.sympify(b))


def rest(a: Any, b: Any) -> Any:
    return ix.Modulo(sympy.sympify(a), sympy.sympify(b))


def drawn(draw: random.Random, depth: int = 0) -> Any:
    if depth == 3 or draw.random() < 0.3:
        return draw.randint(-4, 4) * A + draw.randint(-4, 4) * B + draw.randint(-9, 9)
    kind = draw.choice(("+", "*", "//", "%", "//", "%", "max", "min"))
    a = drawn(draw, depth + 1)
    if kind in ("//", "%"):
        divisor = draw.choice((draw.randint(2, 7), SIZE, 2 * SIZE))
        return quotient(a, divisor) if kind == "//" else rest(a, divisor)
    b = drawn(draw, depth + 1)
    if kind in ("max", "min"):
        return (sympy.Max if kind == "max" else sympy.Min)(a, b)
    return a + b if kind == "+" else a * draw.randint(-3, 3)


FIXED = [
    A,
    quotient(A, 2),
    rest(A, 4),
    quotient(A - 3, 2),
    rest(A - 3, 2),
    quotient(A - B, 3) * 5,
    rest(B - A, 4) + 2 * A,
    quotient(2 * A + 3 * B, 4) * (A + 1),
    rest(quotient(A * B - 7, 3), 5),
    quotient(A * (B + 2), 3 * SIZE),
    rest((A + 1) * (B - 9), SIZE),
    rest(A, 5),
    rest(A, 6),
    rest(-A, 6),
    3 * (A + B) * 2,
    (A + 1) * (B + 2),
    quotient((A + 1) * (B + 2), 3),
    A - quotient(B * SIZE, 4),
    sympy.Max(A, B, 3),
    sympy.Min(A - B, 2),
    A**2 - B,
]
EXPRESSIONS = [*FIXED, *(sympy.sympify(drawn(random.Random(seed))) for seed in range(80))]


def test_cpp(tmp_path: Path) -> None:
    printer = IndexPrinter(RANGES)
    functions = [
        f'extern "C" int64_t f{n}(int64_t a, int64_t b, int64_t s) {{ return {printer.print(e, NAMES)}; }}'
        for n, e in enumerate(EXPRESSIONS)
    ]
    head = "#include <stdint.h>\n#define INLINE static inline\n"
    (tmp_path / "t.cpp").write_text(head + INDEX_HELPERS + "\n".join(functions))
    command = ["g++", "-O1", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "t.so"), str(tmp_path / "t.cpp")]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "t.so"))
    for number, expr in enumerate(EXPRESSIONS):
        function = library[f"f{number}"]
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 3
        for point in POINTS:
            assert function(point[A], point[B], VALUE) == ix.evaluate(expr, point), (expr, point)


PRODUCT = quotient(A + 1, 2) * quotient(SIZE + 3, 2)


def test_a_product_is_one_operand(tmp_path: Path) -> None:
    """A product that begins with a parenthesis may stand behind `/`, `%` and casts."""
    facts: Any = None
    body = Body(facts, {}, {}, dict(NAMES), dict(RANGES), "int64_t")
    text, real = body.index(PRODUCT), IndexPrinter(RANGES).real(FloatTrueDiv(B, PRODUCT), NAMES)
    head = "#include <stdint.h>\n#define INLINE static inline\n" + INDEX_HELPERS
    functions = [f"60 / (int64_t){text}", f"60 % (int64_t){text}", f"1000 * {real}"]
    lines = [f'extern "C" int64_t f{n}(int64_t a, int64_t b, int64_t s) {{ return {f}; }}' for n, f in enumerate(functions)]
    (tmp_path / "t.cpp").write_text(head + "\n".join(lines))
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "-w", "-o", str(tmp_path / "t.so"), str(tmp_path / "t.cpp")], check=True)
    library = ctypes.CDLL(str(tmp_path / "t.so"))
    a, b, number = 3, 4, 10
    for f, wanted in zip((library.f0, library.f1, library.f2), (60 // number, 60 % number, int(1000 * (b / number))), strict=True):
        assert f(*(ctypes.c_int64(n) for n in (a, b, VALUE))) == wanted


class Number(int):
    """A Triton integer: `//` and `%` truncate."""

    def __add__(self, other: int) -> Number:
        return Number(int(self) + int(other))

    def __sub__(self, other: int) -> Number:
        return Number(int(self) - int(other))

    def __mul__(self, other: int) -> Number:
        return Number(int(self) * int(other))

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: int) -> Number:
        whole = abs(int(self)) // abs(int(other))
        return Number(whole if (int(self) < 0) == (int(other) < 0) else -whole)

    def __mod__(self, other: int) -> Number:
        return Number(int(self) - int(other) * int(self // other))


def where(condition: bool, a: int, b: int) -> Number:
    return Number(a if condition else b)


LANGUAGE = SimpleNamespace(where=where, maximum=lambda a, b: Number(max(int(a), int(b))), minimum=lambda a, b: Number(min(int(a), int(b))))


def test_triton() -> None:
    namespace: dict[str, Any] = {"tl": LANGUAGE}
    for name in ("floor_quotient", "floor_rest"):
        exec(HELPERS[name], namespace)
    for expr in EXPRESSIONS:
        text = write_index(expr, NAMES.__getitem__)
        for point in POINTS:
            found = eval(text, {**namespace, "a": Number(point[A]), "b": Number(point[B]), "s": Number(VALUE)})
            assert found == ix.evaluate(expr, point), (expr, text, point)


def test_intervals_hold_every_value() -> None:
    known = 0
    for expr in EXPRESSIONS:
        found = interval(expr, RANGES)
        values = [ix.evaluate(expr, point) for point in POINTS]
        if found is not None:
            known += 1
            assert found[0] <= min(values) and max(values) <= found[1], expr
    assert known > len(EXPRESSIONS) // 3


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (rest(A, 6), (0, 5)),
        (rest(A, 5), (0, 4)),
        (rest(A - 1, 6), (0, 5)),
        (quotient(A - 3, 2), (-2, 1)),
        ((A - 2) * (B - 3), (-9, 6)),
        (-A, (-5, 0)),
    ],
    ids=str,
)
def test_intervals_are_as_narrow_as_they_can_be(expr: Any, wanted: tuple[int, int]) -> None:
    assert interval(expr, RANGES) == wanted


@pytest.mark.parametrize(
    ("extents", "block", "mode"),
    [
        ((6, 5), 8, "grid"),
        ((6, 5), 16, "grid"),
        ((6, 5), 32, "whole"),
        ((8, 4), 16, "grid"),
        ((4, 2, 8), 32, "loop"),
        ((3, 4, 5), 16, "grid"),
        ((7,), 4, "grid"),
        ((8,), 4, "loop"),
        ((5, 3), 1, "grid"),
    ],
    ids=str,
)
def test_lanes_stand_for_each_point_once(extents: tuple[int, ...], block: int, mode: Any) -> None:
    """Every point of the axes has one lane that is alive, lanes beyond the last one are dead, and positions are the points'."""
    axes = tuple(Axis(axis_symbol(f"i{len(extents) - 1 - d}"), n) for d, n in enumerate(extents))
    lanes = Lanes("x", axes, block, mode)
    row_major = ix.contiguous_strides(extents)
    flat = sum((c * a.symbol for c, a in zip(row_major, axes, strict=True)), sympy.S.Zero)
    reverse = sum((c * a.symbol for c, a in zip(reversed(row_major), axes, strict=True)), sympy.S.Zero)
    texts = {e: lanes.joined(e) for e in (flat, reverse, *(a.symbol for a in axes))}
    for symbol in {s for e in texts.values() for s in e.free_symbols}:
        if symbol in lanes.symbols:
            lanes.used.setdefault(symbol, _run(lanes, symbol))
    count, seen = 1, []
    for n in extents:
        count *= n
    for lane in range(-(-count // block) * block):
        namespace: dict[str, Any] = {"x": Number(lane), "x_mask": True}
        for line in lanes.define(str):
            exec(line, {}, namespace)
        if not namespace["x_mask"]:
            continue
        place, point = lane, {}
        for axis, stride in zip(axes, row_major, strict=True):
            point[axis.symbol], place = divmod(place, int(stride))
        seen.append(lane)
        values = {symbol: int(namespace[str(symbol)]) for symbol in lanes.used}
        for expr, joined in texts.items():
            assert ix.evaluate(joined, values) == ix.evaluate(expr, point), (expr, joined, lane)
    assert seen == list(range(count))


def _run(lanes: Lanes, symbol: sympy.Symbol) -> Any:
    from precast.codegen.triton.render.lanes import Run

    position = [a.symbol for a in lanes.axes].index(symbol)
    return Run(position, position)


@pytest.mark.parametrize(
    ("value", "dtype", "wanted"),
    [
        (300, DType.U8, 44),
        (-1, DType.U8, 255),
        (128, DType.I8, -128),
        (2**31, DType.I32, "INT32_MIN"),
        (2**63, DType.I64, "INT64_MIN"),
        (-5, DType.I32, -5),
    ],
)
def test_integers_wrap_as_in_memory(value: int, dtype: DType, wanted: Any) -> None:
    text = literal(value, dtype)
    assert text == wanted if isinstance(wanted, str) else text.rpartition(")(")[2].strip("()") == str(wanted)
