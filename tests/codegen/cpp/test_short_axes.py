"""Axes that the vector axis is decided without, or interleaved with: positions once for several rows, and several stores of one loop."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen.cpp.kernel import render_kernel
from precast.lowering.ir.nodes import Kernel
from tests.ops.runners import program_of


def source(fn: Callable[..., Tensor], *inputs: Tensor) -> str:
    program, _ = program_of(fn, inputs, schedule=True)
    (kernel,) = (s for s in program.steps if isinstance(s, Kernel))
    return render_kernel(kernel, {b.name: b for b in program.buffers}).source


def columns(x: Tensor, i: Tensor, j: Tensor) -> tuple[Tensor, ...]:
    return (
        x.index_select(1, i),
        x[:, j] * 2,
        x[..., i].relu() + x[..., j],
        x.t().contiguous()[i],
        x.unsqueeze(0).expand(3, -1, -1).index_select(2, i) + 1,
        F.pad(x[:, j], (2, 1)),
        torch.cat([x[:, i], x[:, j]], 1) + 1,
        x[:, i].amax(1),
        x.gather(1, j.expand(x.shape[0], -1)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8], ids=str)
def test_positions_of_columns(dtype: torch.dtype, store: Path) -> None:
    compiled = precast.compile(columns, store=store, dynamic=False)
    for rows, width, taken in ((37, 50, 9), (16, 33, 40), (5, 3, 1), (64, 9000, 3001)):
        x = torch.randn(rows, width).mul(9).to(dtype)
        i, j = torch.randint(0, width, (taken,)), torch.randint(-width, width, (taken,))
        found = torch.where(j < 0, j + width, j)
        for got, want in zip(compiled(x, i, found), columns(x, i, found), strict=True):
            torch.testing.assert_close(got, want)
        torch.testing.assert_close(precast.compile(lambda x, j: x[:, j], store=store)(x, j), x[:, j])


def test_positions_where_sizes_vary(store: Path) -> None:
    compiled = precast.compile(columns, store=store, dynamic=True)
    for rows, width, taken in ((37, 50, 9), (16, 33, 40), (70, 1300, 1100), (8, 7, 2)):
        x, i, j = torch.randn(rows, width), torch.randint(0, width, (taken,)), torch.randint(0, width, (taken,), dtype=torch.int32)
        for got, want in zip(compiled(x, i, j.long()), columns(x, i, j.long()), strict=True):
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_position_outside_is_an_error(rows: int, store: Path) -> None:
    compiled = precast.compile(lambda x, i: x.index_select(1, i) + 1, store=store, dynamic=False)
    x, i = torch.randn(rows, 30), torch.arange(20)
    assert torch.equal(compiled(x, i), x[:, :20] + 1)
    for wrong in (30, -1, 2**40):
        with pytest.raises(RuntimeError, match="is out of bounds for dimension 1 with size 30"):  # as eager's kernel for columns has it
            compiled(x, i.index_fill(0, torch.tensor(13), wrong))


def test_positions_are_found_once_for_several_rows() -> None:
    text = source(lambda x, i: x.index_select(1, i), torch.randn(4096, 512), torch.randint(0, 512, (256,)))
    first, second = text.split("#pragma omp simd")[1:]
    assert re.search(r"row\d+\[x1\] = g", first) and re.search(r"p2\[\(row\d+\[x1\]", second) and ">=" not in second
    assert "ask_for_row(p2 + 512*x0, 8 * 512, 512 * 4);" in text.replace("(512*x0)", "512*x0"), "rows that come next are asked for"


def woven(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    n, c, h, w = x.shape
    return (
        F.interpolate(x, scale_factor=2) * 0.5,
        F.interpolate(x, scale_factor=3.0),
        F.interpolate(x, size=(h * 4, w * 8)),
        F.pixel_shuffle(x.reshape(n, 4 * c, h // 2, w // 2), 2).relu(),
        torch.stack([x, y.sin(), x * y], -1),
        torch.view_as_real(torch.complex(x, y)) * 2,
        x.repeat_interleave(2, -1) + 1,
        F.pad(F.interpolate(x, scale_factor=2), (3, 1, 0, 2)),
        torch.stack([x, y], -1).flatten(-2).cumsum(-1),
        torch.cat([x.unsqueeze(-1), y.unsqueeze(-1)], -1).sum(-1),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_stores_that_interleave(dynamic: bool, dtype: torch.dtype, store: Path) -> None:
    compiled = precast.compile(woven, store=store, dynamic=dynamic)
    for shape in ((2, 3, 8, 20), (1, 2, 4, 50), (3, 1, 18, 66)):
        x, y = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
        x[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), -0.0])
        for got, want in zip(compiled(x, y), woven(x, y), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


def test_upsampling_writes_its_results_in_one_pass() -> None:
    text = source(lambda x: F.interpolate(x, scale_factor=2) * 0.5, torch.randn(4, 8, 64, 64))
    (inside,) = text.split("#pragma omp simd")[1:]
    assert len(re.findall(r"p0\[[^;]*\] = ", inside)) == 2
