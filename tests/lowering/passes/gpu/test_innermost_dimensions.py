"""The innermost dimension of temporaries: chosen by what moves least, with the same results, and never of what others look at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.lowering.analysis.traits import SM_90
from precast.lowering.costs.sectors import moved_by
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.passes.layout.innermost_dimension import innermost_dimensions
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.lowering.passes.gpu.innermost_dimensions import CASES, failure
from tests.ops.runners import program_of

ROOT = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", list(CASES))
def test_by_the_oracle(name: str, symbolic: bool) -> None:
    assert failure(name, symbolic, lambda program, inputs: list(run(verify(program), inputs))) == ""


def test_kernels_in_the_interpreter() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.lowering.passes.gpu.innermost_dimensions"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def before_and_after(fn: Any, inputs: tuple[Any, ...], symbolic: bool = False) -> tuple[Program, Program]:
    """The program before the pass and behind it."""
    found: list[Program] = []

    def noted(program: Program) -> Program:
        found[:] = [program, innermost_dimensions(program, SM_90)]
        return found[1]

    program_of(fn, inputs, schedule=True, target="cuda:sm_90", symbolic=symbolic, instead={"innermost dimensions": noted})
    return found[0], found[1]


@pytest.mark.parametrize("name", list(CASES))
def test_what_moves(name: str) -> None:
    """As many temporaries as each case says, and with them fewer bytes move."""
    torch.manual_seed(5)
    before, after = before_and_after(CASES[name].program, CASES[name].make())
    pairs = list(zip(before.buffers, after.buffers, strict=True))
    assert sum(a.stride != b.stride for a, b in pairs) == CASES[name].moves
    costs = [sum(moved_by(s, {b.name: b for b in p.buffers}, 32).nbytes for s in p.steps if isinstance(s, Kernel)) for p in (before, after)]
    assert costs[1] < costs[0] or not CASES[name].moves


def test_rows_that_are_gathered_lie_in_line() -> None:
    """Rows of points of which the shape has the channels in front: writer, gather and product take them with the channels innermost."""
    inputs = (torch.empty(16, 1024, 20, 64), torch.zeros(16, 1024, 20, dtype=torch.int64), torch.empty(64, 64))
    _, after = before_and_after(CASES["edges"].program, inputs)
    points = [b for b in after.buffers if set(b.size) == {16, 64, 1024} and len(b.size) == 3]
    assert len(points) == 2 and all(b.stride[b.size.index(64)] == 1 for b in points)


def test_what_fits_stays() -> None:
    """Copies in tiles, reductions of rows and columns, and gathers of whole rows have nothing to gain."""
    x = torch.empty(64, 128, 256)
    for fn in (
        lambda a, w: (a.sum(1)[:, None] * a) @ w,
        lambda a, w: (a @ w).transpose(1, 2).softmax(-1),
        lambda a, w: a.cos()[:, torch.arange(128).flip(0)] @ w,
    ):
        before, after = before_and_after(fn, (x, torch.empty(256, 256)))
        assert before.buffers == after.buffers
