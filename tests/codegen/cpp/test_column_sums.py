"""Sums of columns made in the loop over rows: exact in any shape, the same on any number of threads, and one pass over memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import precast
from precast.codegen.cpp.kernel import render_kernel
from precast.codegen.cpp.planning.column_sums import FEW, LEAST_BLOCKS, WIDEST
from precast.lowering.ir.nodes import Kernel
from tests.ops.runners import program_of

ENOUGH = LEAST_BLOCKS * FEW


def gradients(fn: Callable[..., Tensor], inputs: tuple[Tensor, ...], weights: Tensor) -> tuple[Tensor, ...]:
    leaves = tuple(t.detach().clone().requires_grad_() for t in inputs)
    return torch.autograd.grad(fn(*leaves), leaves, weights)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, True) + 1e-6) * weight


def scaled(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.sigmoid(x * weight + bias)


def worst(found: tuple[Tensor, ...], exact: tuple[Tensor, ...]) -> float:
    return max(float((f.double() - e).abs().max() / e.abs().max()) for f, e in zip(found, exact, strict=True))


@pytest.mark.parametrize(
    "fn, shape",
    [
        (layer_norm, (ENOUGH, 64)),
        (layer_norm, (3, 173, 70)),
        (layer_norm, (1031, 33)),
        (layer_norm, (40_000, 48)),
        (layer_norm, (300, 4099)),
        (layer_norm, (ENOUGH - 1, 64)),
        (rms_norm, (2, 700, 129)),
        (scaled, (999, 65)),
    ],
)
def test_gradients_as_exact_as_eager(fn: Callable[..., Tensor], shape: tuple[int, ...], tmp_path: Path) -> None:
    x, weights = torch.randn(shape) + 0.5, torch.randn(shape)
    inputs = (x, torch.randn(shape[-1]), torch.randn(shape[-1]))[: fn.__code__.co_argcount]
    exact = gradients(fn, tuple(t.double() for t in inputs), weights.double())
    eager = worst(gradients(fn, inputs, weights), exact)
    assert worst(gradients(precast.compile(fn, store=tmp_path), inputs, weights), exact) <= max(2 * eager, 1e-6)


def beside(x: Tensor, g: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Rows and columns of two matrices, by hand."""
    y = (x - x.mean(-1, keepdim=True)) * w
    return y * g - (y * g).mean(-1, keepdim=True), (g * x).sum(0), g.sum(0)


def by_rows(x: Tensor) -> tuple[Tensor, ...]:
    return x.softmax(-1), x.sum(0), x.square().sum(0) / 3 + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_that_are_none_stay_in_their_columns(dtype: torch.dtype, store: Path) -> None:
    x = torch.randn(600, 95).to(dtype)
    x[3, 5], x[400, 7], x[401, 8], x[599, 94] = float("nan"), float("inf"), float("-inf"), -0.0
    found, exact = precast.compile(by_rows, store=store)(x), by_rows(x.double())
    rtol = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-10}[dtype]
    for got, want in zip(found, exact, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=rtol, atol=10 * rtol, equal_nan=True)


def test_any_number_of_threads_gives_the_same_bits(store: Path) -> None:
    inputs = torch.randn(2000, 96), torch.randn(2000, 96), torch.randn(96)
    compiled, before = precast.compile(beside, store=store), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            results.append(compiled(*inputs))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_sizes_that_vary(store: Path) -> None:
    compiled = precast.compile(beside, store=store, dynamic=True)
    for rows, columns in ((300, 80), (ENOUGH, 33), (40, 70), (1000, 9000), (257, WIDEST + 5)):
        inputs = torch.randn(rows, columns), torch.randn(rows, columns), torch.randn(columns)
        assert worst(compiled(*inputs), beside(*(t.double() for t in inputs))) < 2e-6


def kernels(fn: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> list[str]:
    program, _ = program_of(fn, inputs, schedule=True)
    return [render_kernel(s, {b.name: b for b in program.buffers}).source for s in program.steps if isinstance(s, Kernel)]


@pytest.mark.parametrize("shape, joined", [((512, 4096), True), ((65536, 64), True), ((100, 4096), False), ((512, WIDEST + 1), False)])
def test_what_shares_a_pass(shape: tuple[int, int], joined: bool) -> None:
    texts = kernels(beside, torch.randn(shape), torch.randn(shape), torch.randn(shape[1]))
    assert any("__builtin_malloc" in text for text in texts) is joined
    assert not joined or len(texts) == 1


def test_statistics_are_stored_by_the_kernel_that_uses_them() -> None:
    """The rows are read from memory once: what else is made of the statistics reads those."""
    shape = (512, 768)
    texts = kernels(lambda x: torch.native_layer_norm(x, shape[1:], None, None, 1e-5), torch.randn(shape))
    over_rows = [text for text in texts if "< 768" in text]
    assert len(over_rows) == 1 and over_rows[0].count("Shares shares(") == 1


def test_a_module_in_training(store: Path) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8))
    x = torch.randn(700, 32)
    wanted = torch.autograd.grad(model.double()(x.double()).square().sum(), list(model.parameters()))
    found = torch.autograd.grad(precast.compile(model.float(), store=store)(x).square().sum(), list(model.parameters()))
    assert worst(found, wanted) < 1e-5
