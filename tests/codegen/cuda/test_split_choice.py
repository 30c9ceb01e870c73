"""Into how many chunks a reduction is cut, as records say: the ways, their kernels' results, and a build that takes the winner."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precast.codegen.common.measure import Record
from precast.codegen.cuda.pipeline import passes_by
from precast.codegen.cuda.split_choice import BY_RULE, measured_splits, ways_of
from precast.codegen.cuda.tuning import IN_CHUNKS, CudaChooser, Problem
from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.verify.interpret import run
from tests.ops.trace import trace

TARGET = "cuda:sm_90"


def few_rows(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sum(-1) + 1


def scheduled(chooser: CudaChooser, x: torch.Tensor, fn: Any = few_rows) -> Program:
    return schedule(lower(trace(fn, (x,))[0], "rows"), TARGET, instead=passes_by(chooser))


def asked(x: torch.Tensor, fn: Any = few_rows) -> list[Problem]:
    found: list[Problem] = []

    def note(problem: Problem) -> None:
        if problem.ways:
            found.append(problem)

    scheduled(CudaChooser(measure=note), x, fn)
    return found


@pytest.fixture(scope="module")
def rows() -> torch.Tensor:
    return torch.randn(4, 1 << 18)


def test_a_long_row_is_a_question_with_several_answers(rows: torch.Tensor) -> None:
    (problem,) = asked(rows)
    assert problem.key.startswith(IN_CHUNKS + "kernel ") and problem.default == BY_RULE
    assert {BY_RULE, "whole"} < set(problem.ways) <= set(ways_of(SM_90))
    assert len(problem.ways["whole"]) == 1 and not problem.temporaries["whole"] and problem.temporaries[BY_RULE]
    given = {b.name for b in problem.buffers}
    for name, way in problem.ways.items():
        own = given | {b.name for b in problem.temporaries[name]}
        assert {a.buffer for kernel in way for a in kernel.arguments if a.kind == "buffer"} <= own
    assert problem.accepts("whole") and not problem.accepts("library")


@pytest.mark.parametrize("shape", [(64, 256), (100_000, 8)], ids=["little work", "many short rows"])
def test_where_a_cut_gains_nothing_nobody_asks(shape: tuple[int, int]) -> None:
    assert not asked(torch.randn(shape))


@pytest.mark.parametrize("name", ways_of(SM_90))
def test_each_way_is_scheduled_and_right(name: str) -> None:
    x = torch.randn(3, 90_011)
    keys = [problem.key for problem in asked(x)]
    chooser = CudaChooser({key: {"winner": name, "us": {}} for key in keys})
    program = scheduled(chooser, x)
    kernels = [step for step in program.steps if isinstance(step, Kernel)]
    assert (len(kernels) == 1) == (name == "whole") and set(chooser.used) == set(keys)
    (found,) = run(program, [x])
    torch.testing.assert_close(found, few_rows(x), rtol=1e-4, atol=1e-2)


def test_a_record_of_no_way_leaves_the_rule(rows: torch.Tensor) -> None:
    (problem,) = asked(rows)
    plain = scheduled(CudaChooser(), rows)
    odd: dict[str, Record] = {problem.key: {"winner": "a thousand chunks", "us": {}}}
    assert measured_splits(CudaChooser()) is None and measured_splits(CudaChooser(odd)) is not None
    assert str(scheduled(CudaChooser(odd), rows)) == str(plain)
