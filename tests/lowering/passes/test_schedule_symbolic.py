"""Symbolic sizes: the same fusions happen, and one schedule serves several sizes."""

from __future__ import annotations

import pytest
import sympy
import torch

from precast.lowering.ir.nodes import Program
from precast.lowering.ir.scalars import Op
from precast.lowering.verify.interpret import run
from tests.lowering.hand_made_programs import Build, alu, checked_schedule, gelu, kernels, layer_norm, random_inputs, softmax

S = sympy.Symbol("s0", integer=True, positive=True)


def norm() -> Program:
    b = Build()
    b.input("x", S, 32)
    b.input("y", S, 32)
    b.kernel("s", (S, 32), lambda i, j: alu(Op.ADD, b.load("x", i, j), b.load("y", i, j)))
    layer_norm(b, "s", S, 32, "out")  # type: ignore[arg-type]
    return b.program("s", "out")


def images() -> Program:
    """[batch, channel, position] read as rows of channels."""
    b = Build()
    b.input("x", S, 4, 8)
    b.kernel("a", (S, 4, 8), lambda i, j, k: gelu(b.load("x", i, j, k)))
    softmax(b, "a", (S, 4, 8), "y")  # type: ignore[arg-type]
    return b.program("y")


def product() -> Program:
    b = Build()
    b.input("x", S, 8)
    b.input("w", 8, 8)
    b.input("bias", 8)
    b.gemm("g", "x", "w")
    b.kernel("a", (S, 8), lambda i, j: alu(Op.ADD, b.load("g", i, j), b.load("bias", j)))
    b.kernel("y", (S, 8), lambda i, j: gelu(b.load("a", i, j)))
    return b.program("y")


@pytest.mark.parametrize(
    ("make", "wanted"),
    [(norm, ["kernel"]), (images, ["kernel", "kernel"]), (product, ["gemm"])],
    ids=["norm", "softmax of gelu", "product with epilogue"],
)
def test_one_schedule_for_all_sizes(make, wanted: list[str]) -> None:  # type: ignore[no-untyped-def]
    program = make()
    scheduled = checked_schedule(program, tolerance=1e-3, s0=5)
    assert kernels(scheduled) == wanted, scheduled.notes
    for size in (1, 2, 17):
        inputs = random_inputs(program, s0=size)
        for want, got in zip(run(program, inputs, double=True), run(scheduled, inputs), strict=True):
            torch.testing.assert_close(got.double(), want.double(), atol=1e-3, rtol=1e-3)
