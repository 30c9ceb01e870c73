"""Convolutions that write over the residual that they add: which do, and that the results are right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from precast.codegen import compile_program
from precast.codegen.common.library_steps import LibraryCall
from precast.codegen.common.options import CodegenOptions
from precast.codegen.cpu.reuse_residuals import write_over_residuals
from precast.lowering.ir.nodes import Buffer, Conv, Extern, Program
from tests.codegen.loader import Loaded
from tests.codegen.programs import F32, buffer, program, view

SHAPE = (2, 16, 6, 6)
LAST = torch.empty(SHAPE).to(memory_format=torch.channels_last).stride()
X, W = buffer("x", SHAPE, F32, LAST), buffer("w", (16, 16, 1, 1))
R, S, T = (buffer(name, SHAPE, F32, LAST) for name in ("r", "s", "t"))


def conv(x: Buffer, out: Buffer, residual: Buffer | None = None) -> Conv:
    rest = None if residual is None else view(residual)
    return Conv(view(x), view(W), None, out.name, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, "none" if rest is None else "relu", (), rest)


def block(x: Buffer, residual: Buffer) -> list[Conv | Extern]:
    return [conv(X, R), conv(X, S), conv(x, T, residual)]


CHAIN = program([X, W], [T], block(S, R), temps=[R, S])
KEPT: dict[str, Program] = {
    "read later": program([X, W], [T], [*block(S, R), conv(R, S)], temps=[R, S]),
    "a result": program([X, W], [T, R], block(S, R), temps=[S]),
    "an input": program([X, W, R], [T], block(S, R)[1:], temps=[S]),
    "another operand": program([X, W], [T], block(R, R), temps=[R, S]),
    "seen by an operator": program(
        [X, W], [T], [*block(S, R)[:2], Extern("aten::relu", (view(R),), (), ("e",)), conv(S, T, R)], temps=[R, S, replace(R, name="e")]
    ),
}


def over(p: Program) -> list[str]:
    """The results that are written over a residual, if oneDNN runs every convolution."""
    steps = [LibraryCall(step, "onednn") if isinstance(step, Conv) else step for step in p.steps]
    return [step.out for step in write_over_residuals(steps, p) if isinstance(step, LibraryCall) and step.over]


def test_a_residual_that_dies_gives_its_memory() -> None:
    assert over(CHAIN) == ["t"]


@pytest.mark.parametrize("why", KEPT)
def test_any_other_residual_stays(why: str) -> None:
    assert over(KEPT[why]) == []


@pytest.mark.parametrize("why", [None, "read later", "a result", "another operand"])
@pytest.mark.parametrize("freeze", [False, True])
def test_results(why: str | None, freeze: bool) -> None:
    p = CHAIN if why is None else KEPT[why]
    compiled = compile_program(p, "cpu:native", CodegenOptions(measure=False, freeze=freeze))
    assert (b"convolution_pointwise_binary_\0" in compiled.library) == (why is None)
    x, w = torch.randn(SHAPE).to(memory_format=torch.channels_last), torch.randn(16, 16, 1, 1)
    loaded = Loaded(compiled.library, len(p.outputs))
    r = torch.nn.functional.conv2d(x, w)
    want = torch.relu(torch.nn.functional.conv2d(r, w) + r)
    for _ in range(2):
        got = loaded(x, w)
        torch.testing.assert_close(got[0], want, rtol=1e-4, atol=1e-4)
        assert got[0].stride() == LAST
        if len(got) > 1:
            torch.testing.assert_close(got[1], r, rtol=1e-4, atol=1e-4)
