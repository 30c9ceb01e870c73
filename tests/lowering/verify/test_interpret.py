"""The oracle itself: values, reductions, scans, gathers, masks, stores, library steps and poisoned memory against torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy
import torch

from precast.lowering.ir.nodes import (
    Alu,
    Attention,
    Axis,
    Conv,
    Extern,
    Gather,
    Index,
    Kernel,
    Load,
    Scan,
    Slot,
    Store,
    Value,
    View,
    axis_symbol,
)
from precast.lowering.ir.scalars import DType, Op, ReduceOp
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import InvalidProgram, verify
from tests.lowering.hand_made_programs import Build, F, alu, const, reduce

X = torch.tensor([[1.5, -2.0, float("nan"), 0.0], [3.0, 3.0, -1.0, float("inf")]])


@pytest.mark.parametrize(
    ("body", "wanted", "dtype"),
    [
        (lambda b, i, j: alu(Op.MAX, b.load("x", i, j), const(0.0)), torch.relu(X), F),
        (lambda b, i, j: alu(Op.ISNAN, b.load("x", i, j), dtype=DType.BOOL), torch.isnan(X), DType.BOOL),
        (lambda b, i, j: Index(4 * i + j), torch.arange(8).reshape(2, 4), DType.I64),
        (lambda b, i, j: Scan(ReduceOp.MAX, b.load("x", i, j), Axis(j, 4), F), X.cummax(1).values, F),
    ],
    ids=["max keeps nan", "isnan", "index", "running maximum"],
)
def test_pointwise(body: Callable[..., Value], wanted: torch.Tensor, dtype: DType) -> None:
    b = Build()
    b.input("x", 2, 4)
    axes = (Axis(axis_symbol("i1"), 2), Axis(axis_symbol("i0"), 4))
    i, j = (a.symbol for a in axes)
    value = body(b, i, j)
    if isinstance(value, Scan):
        value = Scan(value.op, value.value, axes[1], value.dtype)
    b.buffer("y", (2, 4), dtype)
    b.steps.append(Kernel("k", axes, (Store("y", 4 * i + j, value),)))
    (found,) = run(verify(b.program("y")), [X.clone()])
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("op", "wanted", "dtype"),
    [
        (ReduceOp.SUM, X.sum(1), F),
        (ReduceOp.PROD, X.prod(1), F),
        (ReduceOp.MAX, X.amax(1), F),
        (ReduceOp.MIN, X.amin(1), F),
        (ReduceOp.ARGMAX, X.argmax(1), DType.I64),
        (ReduceOp.ARGMIN, X.argmin(1), DType.I64),
        (ReduceOp.ANY, X.bool().any(1), DType.BOOL),
        (ReduceOp.ALL, X.bool().all(1), DType.BOOL),
    ],
)
def test_reductions(op: ReduceOp, wanted: torch.Tensor, dtype: DType) -> None:
    b = Build()
    b.input("x", 2, 4)
    b.kernel("y", (2,), lambda i: reduce(op, 4, lambda r: b.load("x", i, r), dtype), dtype)
    (found,) = run(verify(b.program("y")), [X.clone()])
    torch.testing.assert_close(found, wanted, equal_nan=True)


def gather_program(index: list[int]) -> list[torch.Tensor]:
    b = Build()
    b.input("table", 5, 3)
    b.input("index", len(index), dtype=DType.I64)
    g = sympy.Symbol("g0", integer=True)

    def body(i: sympy.Symbol, j: sympy.Symbol) -> Value:
        return Load("table", 3 * g + j, F, (Gather(g, b.load("index", i), 5),))

    b.kernel("y", (len(index), 3), body)
    return run(verify(b.program("y")), [torch.arange(15.0).reshape(5, 3), torch.tensor(index)])


def test_gather_wraps_once_and_stops_outside() -> None:
    torch.testing.assert_close(gather_program([0, -1, 4])[0], torch.arange(15.0).reshape(5, 3)[[0, -1, 4]])
    for bad in (5, -6):
        with pytest.raises(IndexError, match="out of range for a dimension of size 5"):
            gather_program([0, bad])


def test_masked_load_reads_nothing_where_false() -> None:
    b = Build()
    b.input("x", 4)

    def body(i: sympy.Symbol) -> Value:
        inside = Alu(Op.LT, (Index(i), Index(sympy.Integer(4))), DType.BOOL)
        return Load("x", i, F, mask=inside)

    b.kernel("y", (6,), body)
    torch.testing.assert_close(run(verify(b.program("y")), [torch.ones(4)])[0], torch.tensor([1.0, 1, 1, 1, 0, 0]))


def test_library_steps() -> None:
    b = Build()
    for name, size in {"x": (2, 6, 5, 5), "w": (4, 3, 3, 3), "q": (2, 4, 6, 8), "k": (2, 2, 6, 8)}.items():
        b.input(name, *size)
    b.buffer("c", (2, 4, 5, 5))
    b.buffer("a", (2, 4, 6, 8))
    b.buffer("s", (2, 6, 5, 5))
    b.steps += [
        Conv(b.view("x"), b.view("w"), None, "c", (1, 1), (1, 1), (1, 1), False, (0, 0), 2, activation="relu"),
        Attention(b.view("q"), b.view("k"), b.view("k"), None, "a", True, 0.3),
        Extern("aten::softmax.int", (b.view("x"), 1), (("dtype", ("dtype", "float32")),), ("s",)),
    ]
    x, w, q, k = (torch.randn(b.buffers[n].size) for n in "xwqk")
    c, a, s = run(verify(b.program("c", "a", "s")), [x, w, q, k], double=True)
    torch.testing.assert_close(c, torch.relu(torch.conv2d(x.double(), w.double(), padding=1, groups=2)))
    k2 = k.double().repeat_interleave(2, 1)
    torch.testing.assert_close(a, torch.nn.functional.scaled_dot_product_attention(q.double(), k2, k2, is_causal=True, scale=0.3))
    torch.testing.assert_close(s, x.softmax(1).double())


def test_unwritten_memory_is_poison() -> None:
    b = Build()
    b.input("x", 4)
    b.buffer("y", (4,))
    i = axis_symbol("i0")
    b.steps.append(Kernel("half", (Axis(i, 2),), (Store("y", i, b.load("x", i)),)))
    (found,) = run(b.program("y"), [torch.ones(4)])
    assert found[:2].tolist() == [1.0, 1.0] and found[2:].isnan().all()


def chain() -> Build:
    b = Build()
    b.input("x", 64)
    b.kernel("a", (64,), lambda i: alu(Op.EXP, b.load("x", i)))
    b.kernel("c", (64,), lambda i: alu(Op.NEG, b.load("x", i)))
    b.kernel("y", (64,), lambda i: alu(Op.ADD, b.load("a", i), b.load("c", i)))
    return b


def test_a_wrong_plan_gives_wrong_numbers_and_is_refused() -> None:
    program = replace(chain().program("y"), workspace=(Slot("a", 0, 256), Slot("c", 0, 256)), workspace_bytes=256)
    x = torch.randn(64)
    (found,) = run(program, [x])
    assert not torch.allclose(found, x.exp() - x)
    with pytest.raises(InvalidProgram, match="share bytes while both are alive"):
        verify(program)


def _without_input(b: Build) -> None:
    b.inputs.clear()


def _out_of_bounds(b: Build) -> None:
    b.kernel("z", (65,), lambda i: b.load("x", i))


def _unbound(b: Build) -> None:
    b.kernel("z", (4,), lambda i: b.load("x", axis_symbol("loose")))


def _mixed_types(b: Build) -> None:
    b.kernel("z", (4,), lambda i: alu(Op.ADD, b.load("x", i), Index(i)))


def _bad_view(b: Build) -> None:
    b.gemm("z", View("x", (8, 9), (9, 1)), View("x", (9, 2), (2, 1)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_without_input, "x is read before it is written"),
        (_out_of_bounds, r"the index i0 of x takes 0\.\.64, the buffer has 64 elements"),
        (_unbound, "uses .'loose'., which nothing binds"),
        (_mixed_types, "the operands of add have types"),
        (_bad_view, "the view of x reaches element 71"),
    ],
)
def test_verifier_names_what_is_wrong(spoil: Callable[[Build], None], message: str) -> None:
    b = chain()
    spoil(b)
    with pytest.raises(InvalidProgram, match=message) as error:
        verify(b.program("y"), after="some pass")
    assert "after the pass 'some pass'" in str(error.value) and "in the step:" in str(error.value)
