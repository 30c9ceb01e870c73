"""Sums of many f32 numbers on a CPU: f32 over few points, f64 over those, so that the error does not grow with the number of points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen.cpp.loops import ROWS, RUN

Fn = Callable[[Tensor], Tensor]


def error(found: Tensor, exact: Tensor) -> float:
    """Relative to the largest value."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


def norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, None, None, True)


def statistics(x: Tensor) -> Tensor:
    mean, variance = torch.zeros(x.shape[1], dtype=x.dtype), torch.ones(x.shape[1], dtype=x.dtype)
    F.batch_norm(x, mean, variance, None, None, True, 1.0)
    return torch.cat([mean, variance])


LONG: list[tuple[str, Fn, Tensor]] = [
    ("long rows", lambda x: x.sum(1), torch.randn(64, 100_000) + 3),
    ("one row", lambda x: x.sum(), torch.randn(3_000_000) + 3),
    ("few rows in pieces", lambda x: x.mean(1), torch.randn(2, 2_000_000) + 3),
    ("long columns", lambda x: x.sum(0), torch.randn(1_000_000, 16) + 3),
    ("one column each", lambda x: x.sum(0), torch.randn(500_000, 3) + 3),
    ("inner and outer axes", lambda x: x.sum((0, 2)), torch.randn(300, 8, 700) + 3),
    ("short inner axis", lambda x: x.mean((0, 2)), torch.randn(60_000, 4, 7) + 3),
    ("a variance", lambda x: x.var(0), torch.randn(400_000, 24) + 3),
    ("a layer norm", lambda x: F.layer_norm(x, x.shape[1:]), torch.randn(8, 400_000) + 3),
    ("a batch norm", norm, torch.randn(8, 32, 112, 112) * 2 + 3),
    ("a batch norm of channels-last", norm, (torch.randn(8, 32, 112, 112) * 2 + 3).contiguous(memory_format=torch.channels_last)),
    ("running statistics", statistics, torch.randn(8, 32, 112, 112) * 2 + 3),
    ("those of channels-last", statistics, (torch.randn(8, 32, 112, 112) * 2 + 3).contiguous(memory_format=torch.channels_last)),
]


@pytest.mark.parametrize("name", [name for name, _, _ in LONG])
@pytest.mark.parametrize("threads", [1, 2])
def test_as_exact_as_eager(name: str, threads: int, tmp_path: Path) -> None:
    fn, x = next((fn, x) for other, fn, x in LONG if other == name)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exact, eager, compiled = fn(x.double()), fn(x), precast.compile(fn, store=tmp_path)(x)
    finally:
        torch.set_num_threads(before)
    assert compiled.dtype == torch.float32
    assert error(compiled, exact) <= max(2 * error(eager, exact), 3e-7)


@pytest.mark.parametrize("count", [1, 2, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS, RUN - 1, RUN, RUN + 1, 2 * RUN + 3])
def test_sizes_around_the_pieces(count: int, tmp_path: Path) -> None:
    """Each element once: sums of whole numbers are exact in f32 as well."""
    x = torch.randint(0, 100, (count, 5)).float()

    def sums(x: Tensor) -> tuple[Tensor, ...]:
        y = x.t().contiguous()
        return x.sum(0), y.sum(1), y.sum(), (x > 50).sum(0), y.amax(1), x.sum(0, dtype=torch.float64), (y - y.mean(1, keepdim=True)).abs()

    for found, wanted in zip(precast.compile(sums, store=tmp_path)(x), sums(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 700, 20), (1500, 3, 5), (40, 40, 40)])
def test_sizes_that_vary(shape: tuple[int, ...], tmp_path: Path) -> None:
    def sums(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum((0, 1)), x.sum((1, 2)), x.sum((0, 2)), x.sum(), x.mean(0)

    compiled = precast.compile(sums, store=tmp_path, dynamic=True)
    for factor in (1, 2, 3):
        x = torch.randint(0, 100, (shape[0] * factor, shape[1] + factor, shape[2])).float()
        for found, wanted in zip(compiled(x), sums(x), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
