"""Reductions along columns in wide blocks of lanes: sizes that fill no block, NaN in any place, combined chunks, both vector widths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.codegen.cpp.planning.wide_lanes import WIDEST
from tests.codegen.programs import Loaded
from tests.ops.runners import program_of

Fn = Callable[[Tensor], Tensor]

COLUMNS: dict[str, Fn] = {
    "sum": lambda x: x.sum(0) * 2,
    "mean of squares": lambda x: (x * x).mean(0),
    "amax": lambda x: x.amax(0),
    "amin": lambda x: x.amin(0) - 1,
    "any": lambda x: (x > 3.5).any(0),
    "prod": lambda x: (1 + x * 1e-4).prod(0),
}
SIZES = ((3000, 65), (700, 1000), (513, 1024), (64, 1100), (1300, 3001), (5, 2500))


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:native"])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_any_number(name: str, target: str) -> None:
    fn = COLUMNS[name]
    for size in SIZES:
        x = torch.randn(size)
        x[:, 3] = float("nan")
        for row in (0, size[0] // 2, size[0] - 1):
            x[row, 64 - row % 7] = float("nan")
        x[1, -1] = float("inf")
        program, _ = program_of(fn, (x,), schedule=True, target=target)
        (got,) = Loaded(compile_program(program, target, CodegenOptions(measure=False)).library, 1)(x)
        exact = fn(x.double())
        torch.testing.assert_close(
            got, exact.to(got.dtype), rtol=1e-4 if name == "prod" else 2e-6, atol=2e-3 if name == "sum" else 1e-5, equal_nan=True
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8])
def test_columns_of_other_types(dtype: torch.dtype, store: Path) -> None:
    x = (torch.randn(640, 1090) * 9).abs().to(dtype)
    found = precast.compile(lambda x: (x.sum(0), x.amax(0), x.amin(0)), store=store)(x)
    wide = x.double() if dtype.is_floating_point else x
    for got, want in zip(found, (wide.sum(0), x.amax(0), x.amin(0)), strict=True):
        torch.testing.assert_close(got, want.to(got.dtype), rtol=1e-2 if dtype.is_floating_point else 0, atol=0)


def test_columns_within_batches(store: Path) -> None:
    for size in ((64, 64, 1024), (3, 700, 1111), (2, 5, 40, 200)):
        x = torch.randn(size)
        x[0, 1, 2] = float("nan")
        found = precast.compile(lambda x: (x.sum(1), x.amax(1), x.mean((0, 1)), x.amin(-2)), store=store, dynamic=False)(x)
        d = x.double()
        for got, want in zip(found, (d.sum(1), d.amax(1), d.mean((0, 1)), d.amin(-2)), strict=True):
            torch.testing.assert_close(got, want.float(), rtol=1e-5, atol=1e-4, equal_nan=True)


def test_blocks_are_wide_where_one_pass_is_all() -> None:
    def source(fn: Fn, size: tuple[int, ...]) -> str:
        program, _ = program_of(fn, (torch.randn(size),), schedule=True, target="cpu:x86-64-v3")
        return compile_program(program, "cpu:x86-64-v3", CodegenOptions(measure=False)).kernel_source

    assert f"[{WIDEST}]" in source(lambda x: x.sum(0), (4096, 1024))
    assert "[576]" in source(lambda x: x.amax(0), (4096, 1100))  # two blocks of nearly the same width
    assert "[64]" in source(lambda x: x.logsumexp(0), (4096, 1024))  # the second pass finds a narrow block in the cache


def test_the_number_of_threads_does_not_show(store: Path) -> None:
    x, before, found = torch.randn(4096, 1030), torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(precast.compile(lambda x: x.sum(0), store=store)(x))
    torch.set_num_threads(before)
    assert all(torch.equal(found[0], other) for other in found)
    torch.testing.assert_close(found[0], x.double().sum(0).float(), rtol=1e-6, atol=1e-4)
