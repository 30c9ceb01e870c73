"""Passes that shape kernels for a GPU: reductions cut for few rows, nested ones apart, small kernels in batches. The oracle decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from precast.lowering.analysis.effects import may_draw
from precast.lowering.ir.nodes import Extern, Kernel, Program, Reduce, Scan, walk
from precast.lowering.lower import lower
from precast.lowering.passes.gpu.batch_kernels import MAX_MEMBERS
from precast.lowering.pipeline import schedule
from precast.lowering.verify.interpret import run
from tests.ops.trace import tensors_of, trace

TARGET = "cuda:sm_90"


def compiled(fn: Callable[..., Any], inputs: tuple[Any, ...]) -> Program:
    graph, _ = trace(fn, inputs)
    return schedule(lower(graph, "case"), TARGET, check=True)


def kernels(program: Program) -> list[Kernel]:
    return [s for s in program.steps if isinstance(s, Kernel)]


def chans(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


CUT: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]], int]] = {
    "all of a prime": (lambda x: x.sum(), lambda: (torch.randn(1_000_003, dtype=torch.float64),), 2),
    "two of one operand": (lambda x: (x.sum(), x.amax()), lambda: (torch.randn(1 << 17, dtype=torch.float64),), 2),
    "one needs the other": (lambda x: (x - x.amax()).exp().sum(), lambda: (torch.randn(333, 777, dtype=torch.float64),), 2),
    "channels last": (lambda x: torch.var_mean(x, (0, 2, 3)), lambda: (chans(8, 16, 64, 60).double(),), 2),
    "bool and int8": (
        lambda x: ((x > 3).any(), (x > -9).all(), x.amin()),
        lambda: (torch.randint(-9, 9, (333, 777), dtype=torch.int8),),
        2,
    ),
    "many rows stay whole": (lambda x: x.sum(1), lambda: (torch.randn(400, 4096, dtype=torch.float64),), 1),
    "little work stays whole": (lambda x: x.sum(), lambda: (torch.randn(4096, dtype=torch.float64),), 1),
    "no loops": (lambda x: F.normalize(x.mean((2, 3)), dim=1), lambda: (torch.randn(4, 16, 12, 12, dtype=torch.float64),), 2),
    "running sum of sums": (lambda x: x.sum(1).cumsum(0), lambda: (torch.randn(7, 64, dtype=torch.float64),), 2),
}


@pytest.mark.parametrize("name", CUT)
def test_reductions(name: str) -> None:
    """The same results in as many kernels as stated; no reduction that is not short depends on the point of another."""
    fn, make, count = CUT[name]
    inputs = make()
    program = compiled(fn, inputs)
    assert len(program.steps) == count
    wanted = fn(*inputs)
    for got, want in zip(run(program, tensors_of(inputs)), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    for kernel in kernels(program):
        for value in walk(*(s.value for s in kernel.stores)):
            if isinstance(value, Reduce | Scan) and any(isinstance(v, Reduce) for v in walk(value.value)):
                assert name in ("channels last", "one needs the other"), "a whole row's result, the same for each point"


def test_small_kernels_share_a_launch() -> None:
    """Scaled weights in two batches."""
    weights = [torch.randn(6, 6 + n) for n in range(MAX_MEMBERS + 4)]

    def fn(scale: torch.Tensor, *w: torch.Tensor) -> list[torch.Tensor]:
        return [scale[:, None] * one + n for n, one in enumerate(w)]

    inputs = (torch.randn(6), *weights)
    program = compiled(fn, inputs)
    assert [len(k.stores) for k in kernels(program)] == [MAX_MEMBERS, 4]
    for got, want in zip(run(program, tensors_of(inputs)), fn(*inputs), strict=True):
        torch.testing.assert_close(got, want)


def test_a_batch_does_not_hold_what_needs_its_members() -> None:
    """An update in place keeps its place among the readers of what it overwrites."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = x.t().contiguous() * 2
        x.mul_(y)
        return before, x.flip(0) + 1

    x, y = torch.randn(40, 30), torch.randn(40, 30)
    program = compiled(fn, (x, y))
    given = [x.clone(), y]
    results = run(program, given)
    other = x.clone()
    for got, want in zip([*results, given[0]], [*fn(other, y), other], strict=True):
        torch.testing.assert_close(got, want)


def test_a_sum_of_unknown_length() -> None:
    """Chunks of a size that only the call tells, the last of them short or empty."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x - x.amax()).sum()

    graph = make_fx(fn, tracing_mode="symbolic")(torch.randn(501, 300, dtype=torch.float64))
    program = schedule(lower(graph, "case"), TARGET, check=True)
    assert len(program.steps) == 3
    for rows in (1, 7, 340, 341, 1000):
        x = torch.randn(rows, 31, dtype=torch.float64)
        inputs = [*x.shape, x] if len(program.inputs) > 1 else [x]
        torch.testing.assert_close(run(program, inputs)[0], fn(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("target", [TARGET, "cpu:x86-64-v3"])
def test_random_numbers_are_drawn_in_the_order_of_the_program(target: str) -> None:
    """Whatever the order of steps would save: eager draws the same numbers."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.bernoulli(x.sigmoid()), x.softmax(0).multinomial(5), F.gumbel_softmax(x), torch.rand_like(x) + 1

    graph, _ = trace(fn, (torch.randn(100),))
    program = schedule(lower(graph, "case"), target, check=True)
    drawn = [s.op for s in program.steps if isinstance(s, Extern) and may_draw(s.op)]
    assert drawn == ["aten::bernoulli", "aten::multinomial", "aten::exponential", "aten::rand_like"]
