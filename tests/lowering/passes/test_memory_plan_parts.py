"""The parts of the memory plan one by one: bytes of a buffer, lifetimes, offsets of blocks, and what may be written over."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sympy

from precast.lowering.analysis.buffer_bytes import ALIGNMENT, nbytes_of
from precast.lowering.analysis.liveness import lifetimes
from precast.lowering.analysis.may_alias import may_reuse
from precast.lowering.ir.nodes import Buffer, Index, Load, Store, Value
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.passes.memory.memory_plan import Block, place, plan_memory
from precast.lowering.passes.memory.workspace_segments import _cut, _live
from tests.lowering.hand_made_programs import Build, alu, const, reduce


@pytest.mark.parametrize(
    ("size", "stride", "dtype", "alignment", "nbytes"),
    [
        ((16,), (1,), DType.F32, 64, 64),
        ((17,), (1,), DType.F32, 64, 128),
        ((1,), (1,), DType.BOOL, 64, 64),
        ((64,), (1,), DType.U8, 64, 64),
        ((65,), (1,), DType.U8, 64, 128),
        ((4, 4), (32, 1), DType.F32, 64, 448),
        ((3, 0), (1, 1), DType.F32, 64, 0),
        ((), (), DType.F64, 64, 64),
        ((128,), (1,), DType.F32, 512, 512),
        ((129,), (1,), DType.F32, 512, 1024),
        ((8, 8), (0, 1), DType.F32, 64, 64),
    ],
)
def test_bytes_of_a_buffer(size: tuple[int, ...], stride: tuple[int, ...], dtype: DType, alignment: int, nbytes: int) -> None:
    assert nbytes_of(Buffer("b", dtype, size, stride), alignment) == nbytes


def test_bytes_of_a_buffer_of_the_run_time() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    for size, stride in (((s, 16), (16, 1)), ((s,), (1,)), ((3, s), (s, 1))):
        found = nbytes_of(Buffer("b", DType.F32, size, stride))
        for value in (1, 2, 15, 16, 17, 1000):
            got = int(
                sympy.sympify(found).subs(s, value).replace(lambda e: type(e).__name__ == "FloorDiv", lambda e: e.args[0] // e.args[1])
            )
            exact = 4 * int(sympy.sympify(sympy.Mul(*size)).subs(s, value))
            assert got >= exact and got % ALIGNMENT == 0 and got - exact < ALIGNMENT, (size, value)


def drawn(seed: int) -> list[Block]:
    draw = random.Random(seed)
    blocks = []
    for n in range(draw.randint(1, 14)):
        first = draw.randint(0, 10)
        blocks.append(Block([str(n)], 64 * draw.randint(1, 9), first, first + draw.randint(0, 6)))
    return blocks


@pytest.mark.parametrize("seed", range(200))
def test_what_is_alive_together_lies_apart(seed: int) -> None:
    blocks = drawn(seed)
    offsets, top = place(blocks)
    for n, a in enumerate(blocks):
        begin, end = int(offsets[id(a)]), int(offsets[id(a)]) + int(a.nbytes)
        assert 0 <= begin and end <= top and begin % 64 == 0
        for b in blocks[:n]:
            other, other_end = int(offsets[id(b)]), int(offsets[id(b)]) + int(b.nbytes)
            together = a.first <= b.last and b.first <= a.last
            assert not together or end <= other or other_end <= begin, (a, b)
    assert top <= sum(int(b.nbytes) for b in blocks)
    busiest = max(sum(int(b.nbytes) for b in blocks if b.first <= k <= b.last) for k in range(20))
    assert top >= busiest


@pytest.mark.parametrize("seed", range(60))
def test_a_workspace_that_is_cut(seed: int) -> None:
    """What crosses the cut, what dies before it and what begins after it; the last two are never there together."""
    blocks, count = drawn(seed), 18
    alive = [sum(int(b.nbytes) for b in blocks if b.first <= k <= b.last) for k in range(count)]
    assert _live(blocks, count) == alive
    way = _cut(blocks, [0] * count)
    crossing, early, late = way.groups
    assert sorted(map(id, (*crossing, *early, *late))) == sorted(map(id, blocks))
    assert all(a.last < b.first for a in early for b in late), "their memory is never needed at once"
    assert max((b.last for b in early), default=-1) < min((b.last for b in crossing), default=count)
    bytes_of = [max(_live(group, count)) for group in (early, late)]
    assert way.peak >= max(alive) and way.peak >= max(bytes_of)


@pytest.mark.parametrize(
    ("blocks", "top"),
    [
        ([(640, 0, 1), (640, 2, 3)], 640),  # one after the other
        ([(640, 0, 1), (640, 1, 2)], 1280),  # a step that reads one and writes the other
        ([(640, 0, 4), (320, 0, 1), (320, 2, 4)], 960),
        ([(640, 0, 2), (320, 0, 1), (64, 0, 3), (320, 2, 3)], 1024),  # the gap of what died is filled
    ],
)
def test_room_is_used_again(blocks: list[tuple[int, int, int]], top: int) -> None:
    assert place([Block([str(n)], *block) for n, block in enumerate(blocks)])[1] == top


def chain(one: str = "g", other: str = "a") -> Build:
    b = Build()
    b.input("x", 8, 8)
    b.kernel("a", (8, 8), lambda i, j: alu(Op.EXP, b.load("x", i, j)))
    b.gemm("g", "a", "x")
    b.kernel("c", (8, 8), lambda i, j: alu(Op.ADD, b.load(one, i, j), b.load(other, i, j)))
    b.gemm("h", "c", "x")
    b.kernel("y", (8, 8), lambda i, j: alu(Op.NEG, b.load("h", i, j)))
    return b


def test_lifetimes_end_with_the_last_use() -> None:
    b = chain()
    live = lifetimes(b.program("y"))
    assert live == {"x": (-1, 3), "a": (0, 2), "g": (1, 2), "c": (2, 3), "h": (3, 4), "y": (4, 5)}
    assert lifetimes(b.program("a"))["a"] == (0, 5), "an output is needed after the last step"


@pytest.mark.parametrize(("one", "other"), [("g", "a"), ("a", "g")])
def test_a_block_lives_as_long_as_what_was_written_over_it(one: str, other: str) -> None:
    """`c` is written over `a` or `g`: what comes next must not lie there while `c` is read."""
    b = chain(one, other)
    planned = plan_memory(b.program("y"))
    slots = {s.buffer: int(s.offset) for s in planned.workspace}
    assert slots["c"] in (slots["a"], slots["g"]) and slots["h"] != slots["c"]
    without = {s.buffer: int(s.offset) for s in plan_memory(b.program("y"), reuse=False).workspace}
    assert len({without["a"], without["g"], without["c"]}) == 3


def reuse(build: Build, dying: str, born: str) -> bool:
    return may_reuse(build.program(born), len(build.steps) - 1, dying, born)


def pair(dtype: DType = DType.F32) -> Build:
    b = Build()
    b.input("x", 8, 8)
    b.buffer("d", (8, 8), dtype)
    return b


def test_what_may_be_written_over() -> None:
    b = pair()
    b.kernel("y", (8, 8), lambda i, j: alu(Op.ADD, b.load("d", i, j), b.load("x", j, i)))
    assert reuse(b, "d", "y")
    b = pair()
    b.kernel("y", (8, 8), lambda i, j: alu(Op.ADD, b.load("d", j, i), b.load("d", i, j)))
    assert not reuse(b, "d", "y"), "it is read elsewhere, too"
    b = pair()
    b.kernel("y", (8, 8), lambda i, j: alu(Op.ADD, b.load("d", i, 0), const(1.0)))
    assert not reuse(b, "d", "y"), "others read what the first has written"
    b = pair()
    b.kernel("y", (8, 8), lambda i, j: alu(Op.SUB, b.load("d", i, j), reduce(ReduceOp.MAX, 8, lambda r: b.load("d", i, r))))
    assert not reuse(b, "d", "y"), "a reduction reads what other points have written"


@pytest.mark.parametrize(
    ("dying", "born", "may"), [(DType.F32, DType.I32, True), (DType.F32, DType.F64, False), (DType.F64, DType.F32, False)]
)
def test_what_is_written_over_is_as_wide(dying: DType, born: DType, may: bool) -> None:
    b = pair(dying)
    b.kernel("y", (8, 8), lambda i, j: alu(Op.NEG, b.load("d", i, j)), born)
    assert reuse(b, "d", "y") is may


def test_what_a_reduction_reads_again_and_again_stays() -> None:
    b = pair()
    b.kernel("y", (8, 8), lambda i, j: reduce(ReduceOp.SUM, 8, lambda r: alu(Op.MUL, b.load("d", i, j), b.load("x", r, j))))
    assert not reuse(b, "d", "y")


def test_what_is_used_later_is_not_written_over() -> None:
    b = Build()
    b.input("x", 8, 8)
    b.kernel("a", (8, 8), lambda i, j: alu(Op.EXP, b.load("x", i, j)))
    b.kernel("c", (8, 8), lambda i, j: alu(Op.NEG, b.load("a", i, j)))
    b.gemm("y", "a", "c")
    slots = {s.buffer: s.offset for s in plan_memory(b.program("y")).workspace}
    assert slots["a"] != slots["c"]


def test_what_is_smaller_is_not_written_over() -> None:
    """The first half of `c` reads `a` at the place that it writes; the other half has no room there."""
    b = Build()
    b.input("x", 16)
    b.kernel("a", (16,), lambda i: alu(Op.EXP, b.load("x", i)))

    def half(j: Any) -> Value:
        inside = alu(Op.LT, Index(j), Index(sympy.Integer(16)), dtype=DType.BOOL)
        return Load("a", j, DType.F32, (), inside)

    b.kernel("c", (32,), half)
    b.kernel("y", (32,), lambda j: b.load("c", 31 - j))
    slots = {s.buffer: (int(s.offset), int(s.offset) + int(s.nbytes)) for s in plan_memory(b.program("y")).workspace}
    assert slots["c"][1] - slots["c"][0] == 128 and slots["a"][1] - slots["a"][0] == 64
    assert slots["a"][0] >= slots["c"][1] or slots["a"][1] <= slots["c"][0]


def test_what_another_store_reads_stays() -> None:
    """A kernel's stores may run in loops of their own."""
    b = pair()
    b.kernel("y", (8, 8), lambda i, j: alu(Op.NEG, b.load("d", i, j)))
    b.kernel("z", (8, 8), lambda i, j: alu(Op.EXP, b.load("d", i, j)))
    second, first = b.steps.pop(), b.steps.pop()
    merged = first.__class__(first.name, first.axes, (*first.stores, *second.stores))  # type: ignore[union-attr,call-arg]
    b.steps.append(merged)
    assert not reuse(b, "d", "y")
    only: tuple[Store, ...] = (merged.stores[0],)
    b.steps[-1] = first.__class__(first.name, first.axes, only)  # type: ignore[union-attr,call-arg]
    assert reuse(b, "d", "y")
