"""Which changes of an input are made where it lies, case by case, in programs written by hand; whatever is done, the numbers stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from precast.lowering.ir.nodes import Axis, Kernel, Program, Store, Value, axis_symbol
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.passes.simplify.in_place import write_in_place
from precast.lowering.verify.interpret import run
from tests.lowering.hand_made_programs import Build, alu, const

ROWS, COLUMNS = 6, 4
Body = Callable[[Any, Any], Value]


class Steps(Build):
    """A cache `c` and a row `r`; steps that write parts of buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.input("c", ROWS, COLUMNS)
        self.input("r", COLUMNS)

    def write(self, target: str, rows: int, place: Callable[[Any, Any], tuple[Any, Any]], body: Body, first: bool = False) -> None:
        """Stores `body(i, j)` at `place(i, j)` of `target`, for `rows` rows of all columns."""
        if first:
            self.buffer(target, (ROWS, COLUMNS))
        axes = (Axis(axis_symbol("i1"), rows), Axis(axis_symbol("i0"), COLUMNS))
        i, j = (a.symbol for a in axes)
        self.steps.append(Kernel(f"k{len(self.steps)}", axes, (Store(target, self.at(target, place(i, j)), body(i, j)),)))

    def out(self, value: Body, name: str = "o") -> str:
        return self.kernel(name, (ROWS, COLUMNS), value)


def here(i: Any, j: Any) -> tuple[Any, Any]:
    return (i, j)


def begin(dtype: DType = DType.F32, source: Callable[[Any, Any], tuple[Any, Any]] = here) -> Steps:
    b = Steps()
    b.buffer("n", (ROWS, COLUMNS), dtype)
    b.write("n", ROWS, here, lambda i, j: b.load("c", *source(i, j)))
    return b


def change(b: Steps, row: int = 2) -> None:
    b.write("n", 1, lambda i, j: (row, j), lambda i, j: b.load("r", j))


def back(b: Steps, rows: int = ROWS) -> None:
    b.write("c", rows, here, lambda i, j: b.load("n", i, j))


def plain() -> tuple[Program, int]:
    b = begin()
    change(b)
    back(b)
    return b.program(b.out(lambda i, j: alu(Op.MUL, b.load("c", i, j), const(2.0)))), 2


def changed_twice() -> tuple[Program, int]:
    b = begin()
    change(b)
    change(b, 4)
    back(b)
    return b.program(b.out(lambda i, j: b.load("c", i, j))), 3


def old_contents_between() -> tuple[Program, int]:
    b = begin()
    change(b)
    b.out(lambda i, j: alu(Op.MUL, b.load("c", i, j), const(2.0)))
    back(b)
    return b.program("o"), 4


def old_contents_before() -> tuple[Program, int]:
    b = begin()
    b.out(lambda i, j: alu(Op.MUL, b.load("c", i, j), const(2.0)))
    change(b)
    back(b)
    return b.program("o"), 2


def the_change_reads_the_cache() -> tuple[Program, int]:
    """Row by row, each one's new contents from the row before: where it lies, the second row would read what the first has become."""
    b = begin()
    b.write("n", ROWS - 1, lambda i, j: (i + 1, j), lambda i, j: b.load("c", i, j))
    back(b)
    return b.program(b.out(lambda i, j: b.load("c", i, j))), 4


def the_copy_is_returned() -> tuple[Program, int]:
    b = begin()
    change(b)
    back(b)
    b.out(lambda i, j: b.load("c", i, j))
    return b.program("n", "o"), 4


def from_elsewhere() -> tuple[Program, int]:
    b = begin(source=lambda i, j: (ROWS - 1 - i, j))
    change(b)
    back(b)
    return b.program(b.out(lambda i, j: b.load("c", i, j))), 4


def rounded() -> tuple[Program, int]:
    """Through a half type: the way out and back is no copy."""
    b = begin(DType.BF16)
    change(b)
    back(b)
    return b.program(b.out(lambda i, j: b.load("c", i, j))), 4


def a_part_comes_back() -> tuple[Program, int]:
    b = begin()
    change(b, 4)
    back(b, 3)
    return b.program(b.out(lambda i, j: b.load("c", i, j))), 4


def written_again() -> tuple[Program, int]:
    """The cache is overwritten once more afterwards."""
    b = begin()
    change(b)
    back(b)
    b.write("c", 1, here, lambda i, j: const(9.0))
    return b.program(b.out(lambda i, j: alu(Op.ADD, b.load("c", i, j), b.load("n", i, j)))), 5


def changed_after_it_came_back() -> tuple[Program, int]:
    b = begin()
    change(b)
    back(b)
    change(b, 5)
    return b.program(b.out(lambda i, j: alu(Op.ADD, b.load("c", i, j), b.load("n", i, j)))), 5


CASES = (plain, changed_twice, old_contents_between, old_contents_before, the_change_reads_the_cache, the_copy_is_returned, from_elsewhere)
CASES += (rounded, a_part_comes_back, written_again, changed_after_it_came_back)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_numbers_stay_and_copies_go_where_they_can(make: Callable[[], tuple[Program, int]]) -> None:
    program, steps = make()
    found = write_in_place(program)
    assert len(found.steps) == steps, "copies out and back"
    results = []
    for version in (program, found):
        torch.manual_seed(0)
        cache, row = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)
        outputs = run(version, [cache, row])
        results.append([cache, *outputs])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
