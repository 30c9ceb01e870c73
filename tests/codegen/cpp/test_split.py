"""Reductions to few results in chunks that threads share, and in several accumulators: every element once, with any threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from tests.ops.runners import program_of

Fn = Callable[[Tensor], Tensor]

FEW: dict[str, tuple[Fn, tuple[int, ...]]] = {
    "columns": (lambda x: x.sum(0), (40_000, 64)),
    "few columns": (lambda x: x.sum(0), (200_000, 5)),
    "columns that fill no block": (lambda x: x.amax(0), (30_001, 100)),
    "columns of batches": (lambda x: x.mean(1) * 2, (3, 20_011, 70)),
    "rows": (lambda x: x.sum(-1), (4, 300_007)),
    "largest of rows": (lambda x: x.amax(-1) - 1, (5, 300_001)),
    "outer and inner axes": (lambda x: x.sum((0, 2)), (300, 8, 900)),
    "any of columns": (lambda x: (x > 4).any(0), (100_000, 33)),
    "products": (lambda x: (1 + x * 1e-4).prod(0), (60_000, 20)),
    "counts": (lambda x: (x > 0).sum(0), (90_000, 48)),
}


@pytest.mark.parametrize("name", FEW)
def test_chunks_of_few_results(name: str, store: Path) -> None:
    fn, size = FEW[name]
    x = torch.randn(size)
    x.view(-1)[7] = float("nan") if "largest" in name or "no block" in name else 0.0
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(precast.compile(fn, store=store)(x))
    torch.set_num_threads(before)
    exact = fn(x.double())
    torch.testing.assert_close(found[0], exact.to(found[0].dtype), rtol=1e-5, atol=1e-3, equal_nan=True)
    assert all(torch.equal(found[0].nan_to_num(), f.nan_to_num()) for f in found)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:native"])
def test_loops_that_feed_no_threads_are_cut(target: str) -> None:
    for fn, size in ((lambda x: x.sum(0), (65_536, 64)), (lambda x: x.sum(-1), (4, 1 << 20))):
        program, _ = program_of(fn, (torch.randn(size),), schedule=True, target=target)
        assert "chunks" in compile_program(program, target, CodegenOptions(measure=False)).kernel_source
    for fn, size in ((lambda x: x.sum(-1), (4096, 1024)), (lambda x: x.sum(0), (64, 64))):
        program, _ = program_of(fn, (torch.randn(size),), schedule=True, target=target)
        assert "chunks" not in compile_program(program, target, CodegenOptions(measure=False)).kernel_source


def test_sizes_that_vary(store: Path) -> None:
    compiled = precast.compile(lambda x: (x.sum(0), x.amax(0, keepdim=True) * 2), store=store, dynamic=True)
    for rows in (7, 1, 3, 999, 70_000):
        x = torch.randint(-9, 10, (rows, 24)).float()
        for found, wanted in zip(compiled(x), (x.sum(0), x.amax(0, keepdim=True) * 2), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8])
def test_several_accumulators(dtype: torch.dtype, store: Path) -> None:
    """Whole numbers, so that every order gives the same."""
    for count in (511, 512, 640, 1000, 1024, 4097):
        x = torch.randint(0, 3, (70, count)).to(dtype)
        x[3, -1] = 7

        def several(x: Tensor) -> tuple[Tensor, ...]:
            y = x.float()
            return x.amax(-1), x.amin(-1), y.sum(-1), x.long().sum(-1), (x > 6).any(-1), (x < 7).all(-1)

        for found, wanted in zip(precast.compile(several, store=store, dynamic=False)(x), several(x), strict=True):
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("place", [0, 100, 700, 999])
def test_nan_in_any_of_them(place: int, store: Path) -> None:
    x = torch.randn(64, 1000)
    x[5, place] = float("nan")
    x[6, place] = float("inf")
    compiled = precast.compile(lambda x: (x.amax(-1), x.amin(-1), x.sum(-1)), store=store)
    for found, wanted in zip(compiled(x), (x.amax(-1), x.amin(-1), x.sum(-1)), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True, rtol=1e-4, atol=1e-4)
