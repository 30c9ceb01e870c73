"""Scatters that hit few places often: their updates go to copies of the target, and the sums are eager's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.verify.interpret import run
from tests.ops.runners import program_of

SMALL = replace(SM_90, spread_updates=256, spread_addresses=1 << 10, spread_copies=8)
Fn = Callable[..., Tensor | tuple[Tensor, ...]]


def rows(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.index_add(0, i, s).relu()


def fresh(x: Tensor, i: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    y = torch.zeros_like(x).index_add(0, i, s, alpha=2)
    return y, y + 1


def numbers(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x[:, 0].contiguous().scatter_add(0, i, s[:, 1])


def columns(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.t().index_add(1, i, s.t())


def put(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.index_put((i.view(-1, 2),), s.view(-1, 2, s.shape[1]), accumulate=True)


def largest(x: Tensor, i: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    there = i[:, None].expand_as(s)
    return x.scatter_reduce(0, there, s, "amax"), x.scatter_reduce(0, there, s, "amin", include_self=False)


def mean(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return x.scatter_reduce(0, i[:, None].expand_as(s), s, "mean")


def counts(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
    return torch.ones(len(x), dtype=torch.int64).scatter_add(0, i, torch.ones_like(i))


def given(x: Tensor, i: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """The target is changed where it lies, and twice."""
    x.index_add_(0, i, s)
    y = x * 2
    x.index_add_(0, i, s)
    return x, y


FUNCTIONS: tuple[Fn, ...] = (rows, fresh, numbers, columns, put, largest, mean, counts, given)


def inputs(dtype: torch.dtype, targets: int = 7, updates: int = 400, width: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    s = torch.randn(updates, width).to(dtype)
    s[3, 1], s[5, 0] = float("nan"), float("inf")
    i = torch.randint(0, targets - 1, (updates,))  # the last place is never hit
    return torch.randn(targets, width).to(dtype), i, s


def spread(
    fn: Fn, given: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch, symbolic: bool = False
) -> tuple[Program, Callable[..., object]]:
    monkeypatch.setattr("precast.lowering.targets.gpu.traits_of", lambda target: SMALL)
    return program_of(fn, given, schedule=True, target="cuda:sm_90", symbolic=symbolic)


def copied(program: Program) -> int:
    return sum(b.name.endswith("_copies") for b in program.buffers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_results_are_eagers(fn: Fn, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    arguments = inputs(dtype)
    program, rebuild = spread(fn, arguments, monkeypatch)
    assert copied(program) > 0
    again = [a.clone() for a in arguments]
    want = fn(*(a.double() if a.is_floating_point() else a for a in arguments))
    got = rebuild(run(program, again))
    for a, b in zip(*(of if isinstance(of, tuple) else (of,) for of in (got, want)), strict=True):
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(a.to(b.dtype), b, rtol=tolerance, atol=20 * tolerance, equal_nan=True)


def test_sizes_of_the_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)

    def few(i: Tensor, s: Tensor) -> Tensor:
        return torch.zeros(6, 4).index_add(0, i, s)

    program, rebuild = spread(few, (torch.randint(0, 6, (90,)), torch.randn(90, 4)), monkeypatch, symbolic=True)
    i, s = torch.randint(0, 6, (90,)), torch.randn(90, 4)
    torch.testing.assert_close(rebuild(run(program, [i, s])), few(i, s))


def test_neighbours_update_different_copies_and_what_follows_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = spread(rows, inputs(torch.float32), monkeypatch)
    begin, update, together = (s for s in program.steps if isinstance(s, Kernel))
    assert [s.stores[0].mode for s in (begin, update, together)] == ["set", "add", "set"]
    (copies,) = (b for b in program.buffers if b.name.endswith("_copies"))
    assert copies.size == (8, 35) and "35*" in str(update.stores[0].index) and len(program.steps) == 3


@pytest.mark.parametrize("case", ["few updates", "many places", "in place of one another"])
def test_others_stay_as_they_are(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs(torch.float32, *{"few updates": (7, 40), "many places": (200, 400), "in place of one another": (7, 400)}[case])

    def overwritten(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        return x.index_copy(0, i, s)

    program, _ = spread(overwritten if case == "in place of one another" else rows, arguments, monkeypatch)
    assert copied(program) == 0
