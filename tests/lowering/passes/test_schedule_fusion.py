"""What becomes one kernel and what does not, each checked against the oracle after every pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from precast.lowering.ir.nodes import Kernel, Load, Program
from precast.lowering.ir.scalars import Op, ReduceOp
from precast.lowering.passes.fusion.fusion import fuse_siblings
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.lowering.hand_made_programs import (
    Build,
    F,
    alu,
    checked_schedule,
    const,
    gelu,
    kernels,
    layer_norm,
    random_inputs,
    reduce,
    softmax,
)


def residual_layer_norm(keep_sum: bool) -> Program:
    b = Build()
    x, y = b.input("x", 32, 64), b.input("y", 32, 64)
    b.kernel("s", (32, 64), lambda i, j: alu(Op.ADD, b.load(x, i, j), b.load(y, i, j)))
    layer_norm(b, "s", 32, 64, "out")
    return b.program(*(["s", "out"] if keep_sum else ["out"]))


def softmax_program() -> Program:
    b = Build()
    b.input("x", 2, 16, 24)
    softmax(b, "x", (2, 16, 24), "y")
    return b.program("y")


def gelu_then_layer_norm() -> Program:
    b = Build()
    x = b.input("x", 32, 64)
    b.kernel("g", (32, 64), lambda i, j: gelu(b.load(x, i, j)))
    layer_norm(b, "g", 32, 64, "out")
    return b.program("out")


def layer_norm_then_gelu() -> Program:
    b = Build()
    layer_norm(b, b.input("x", 32, 64), 32, 64, "n")
    b.kernel("out", (32, 64), lambda i, j: gelu(b.load("n", i, j)))
    return b.program("out")


def reshaped_chain() -> Program:
    b = Build()
    x = b.input("x", 4, 8, 16)
    b.kernel("a", (4, 8, 16), lambda i, j, k: alu(Op.EXP, b.load(x, i, j, k)))
    b.kernel("c", (32, 16), lambda n, k: alu(Op.NEG, Load("a", 16 * n + k, F)))
    return b.program("c")


def transposed_reader() -> Program:
    b = Build()
    x = b.input("x", 16, 24)
    b.kernel("a", (16, 24), lambda i, j: alu(Op.EXP, b.load(x, i, j)))
    b.kernel("c", (24, 16), lambda i, j: alu(Op.NEG, b.load("a", j, i)))
    return b.program("c")


def two_readers() -> Program:
    b = Build()
    x = b.input("x", 16, 24)
    b.kernel("a", (16, 24), lambda i, j: alu(Op.EXP, b.load(x, i, j)))
    b.kernel("c", (16, 24), lambda i, j: alu(Op.NEG, b.load("a", i, j)))
    b.kernel("d", (16, 24), lambda i, j: alu(Op.MUL, b.load("a", i, j), b.load("c", i, j)))
    return b.program("c", "d")


def siblings() -> Program:
    b = Build()
    x = b.input("x", 16, 24)
    b.kernel("c", (16, 24), lambda i, j: alu(Op.EXP, b.load(x, i, j)))
    b.kernel("d", (16, 24), lambda i, j: alu(Op.SIN, b.load(x, i, j)))
    return b.program("c", "d")


@pytest.mark.parametrize(
    "make",
    [
        lambda: residual_layer_norm(False),
        lambda: residual_layer_norm(True),
        softmax_program,
        layer_norm_then_gelu,
        reshaped_chain,
        transposed_reader,
        two_readers,
        siblings,
    ],
    ids=["layer norm of a sum", "the sum kept", "softmax", "layer norm, gelu", "reshape", "transpose", "two readers", "siblings"],
)
def test_becomes_one_kernel(make) -> None:  # type: ignore[no-untyped-def]
    assert kernels(checked_schedule(make())) == ["kernel"]


def full_reduction_into_pointwise() -> Program:
    b = Build()
    x = b.input("x", 512, 64)
    b.kernel("rows", (512,), lambda i: reduce(ReduceOp.SUM, 64, lambda r: b.load(x, i, r)))
    b.kernel("s", (), lambda: reduce(ReduceOp.SUM, 512, lambda r: b.load("rows", r)))
    b.kernel("y", (512, 64), lambda i, j: alu(Op.DIV, b.load(x, i, j), b.load("s")))
    return b.program("y")


def column_statistics() -> Program:
    b = Build()
    x = b.input("x", 256, 64)
    b.kernel("s", (64,), lambda j: reduce(ReduceOp.SUM, 256, lambda r: b.load(x, r, j)))
    b.kernel("y", (256, 64), lambda i, j: alu(Op.SUB, b.load(x, i, j), b.load("s", j)))
    return b.program("y")


def window_of_exponentials() -> Program:
    b = Build()
    x = b.input("x", 64)
    b.kernel("e", (64,), lambda i: alu(Op.EXP, b.load(x, i)))
    b.kernel("y", (60,), lambda i: reduce(ReduceOp.MAX, 5, lambda r: b.load("e", i + r)))
    return b.program("y")


def gemm_between() -> Program:
    b = Build()
    x, w = b.input("x", 16, 16), b.input("w", 16, 16)
    b.kernel("a", (16, 16), lambda i, j: alu(Op.SIN, b.load(x, i, j)))
    b.gemm("g", "a", w)
    b.kernel("y", (16, 16), lambda i, j: alu(Op.MUL, b.load("a", i, j), b.load("g", i, j)))
    return b.program("y")


def overwritten_then_read() -> Program:
    """`p` is put into `x` and into what reads the new `x` elsewhere."""
    b = Build()
    x, q = b.input("x", 16, 16), b.input("q", 16, 16)
    b.kernel("p", (16, 16), lambda i, j: alu(Op.EXP, b.load(q, i, j)))
    b.kernel("update", (16, 16), lambda i, j: b.load("p", i, j))
    update = b.steps.pop()
    assert isinstance(update, Kernel)
    b.steps.append(replace(update, stores=(replace(update.stores[0], buffer=x),)))
    b.kernel("y", (16, 16), lambda i, j: alu(Op.ADD, b.load("p", i, j), b.load(x, j, i)))
    del b.buffers["update"]
    return b.program("y")


def windows_of_sums() -> Program:
    b = Build()
    x = b.input("x", 8, 4)
    b.kernel("s", (8,), lambda i: reduce(ReduceOp.SUM, 4, lambda r: b.load(x, i, r)))
    b.kernel("y", (6, 3), lambda i, j: b.load("s", i + j))
    return b.program("y")


@pytest.mark.parametrize(
    ("make", "count", "reason"),
    [
        (full_reduction_into_pointwise, 3, "independent rows"),
        (column_statistics, 2, "consecutive memory"),
        (window_of_exponentials, 2, "times each"),
        (gemm_between, 3, "a step between them"),
        (gelu_then_layer_norm, 2, "each pass over a row"),
        (overwritten_then_read, 2, "one overwrites a buffer that the other reads"),
        (windows_of_sums, 2, "its reduction would be computed again for each use"),
    ],
    ids=["would serialise", "would stride", "would recompute", "something between", "costly in each pass", "overwritten", "sums again"],
)
def test_is_refused_with_a_reason(make, count: int, reason: str) -> None:  # type: ignore[no-untyped-def]
    found = checked_schedule(make(), tolerance=1e-3)
    assert len(found.steps) == count
    assert any(note.startswith("not fused: ") and reason in note for note in found.notes), found.notes


def reads_its_neighbour() -> Program:
    b = Build()
    x = b.input("x", 16, 16)
    b.kernel("c", (16, 16), lambda i, j: alu(Op.EXP, b.load(x, i, j)))
    b.kernel("d", (16, 16), lambda i, j: alu(Op.MUL, b.load("c", j, i), b.load(x, i, j)))
    return b.program("c", "d")


def reads_what_is_made_of_its_neighbour() -> Program:
    b = Build()
    x, w = b.input("x", 16, 16), b.input("w", 16, 16)
    b.kernel("c", (16, 16), lambda i, j: alu(Op.EXP, b.load(x, i, j)))
    b.gemm("g", "c", w)
    b.kernel("d", (16, 16), lambda i, j: alu(Op.MUL, b.load("g", i, j), b.load(x, i, j)))
    return b.program("c", "d")


@pytest.mark.parametrize("launches", [False, True])
@pytest.mark.parametrize(
    ("make", "left"),
    [
        (siblings, ["kernel"]),
        (reads_its_neighbour, ["kernel", "kernel"]),
        (reads_what_is_made_of_its_neighbour, ["kernel", "gemm", "kernel"]),
    ],
    ids=["apart", "one reads the other", "one needs the other"],
)
def test_neighbours_that_read_the_same(make, left: list[str], launches: bool) -> None:  # type: ignore[no-untyped-def]
    program = make()
    found = verify(fuse_siblings(program, 0.1, launches))
    assert kernels(found) == left
    inputs = random_inputs(program)
    for one, other in zip(run(program, inputs), run(found, inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_dead_kernel() -> None:
    """A dead kernel leaves no trace."""
    b = Build()
    x = b.input("x", 8)
    b.kernel("dead", (8,), lambda i: alu(Op.EXP, b.load(x, i)))
    b.kernel("y", (8,), lambda i: alu(Op.ADD, b.load(x, i), const(1.0)))
    found = checked_schedule(b.program("y"))
    assert kernels(found) == ["kernel"] and "dead" not in {x.name for x in found.buffers}
