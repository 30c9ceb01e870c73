"""Scans along memory: rows run side by side in turned blocks, and give what one row after another gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from precast.codegen.cpp.kernel import render_kernel
from precast.lowering.ir.nodes import Kernel
from tests.ops.runners import program_of

INF, NAN = float("inf"), float("nan")


def program(x: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return (
        x.cumsum(-1),
        (x * 0.1).exp().cumsum(-1),
        (x * 0.1).sigmoid().cummax(-1).values + bias,
        (1 - x * 1e-2).cumprod(-1) * 2 + bias,
        x.cummax(-1).values,
        (x + bias).cummin(-1).values * 0.5,
        *x.cummax(-1),
        x.cummin(-1).indices,
        x.cummax(-1).indices,
        x.t().cumsum(0),
        x.t().cumsum(0).t().contiguous(),
    )


def inputs(rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, columns).mul(4)
    if dtype.is_floating_point:
        x[0, columns // 2], x[1, 0], x[2, 3], x[3, 5], x[4] = NAN, NAN, INF, -INF, -0.0
        x[5, : columns // 2], x[5, columns // 2 :] = -0.0, 0.0
        x[6] = torch.arange(columns)
    return x.to(dtype), torch.arange(columns).to(dtype)


def check(compiled: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor, Tensor]) -> None:
    """Extremes and their places are eager's; sums are no further from float64 than rounding allows."""
    for number, (got, want) in enumerate(zip(compiled(*given), program(*given), strict=True)):
        rtol = {torch.bfloat16: 2e-2, torch.float32: 1e-5, torch.float64: 1e-12}.get(got.dtype, 0)
        torch.testing.assert_close(got, want, rtol=rtol, atol=10 * rtol, equal_nan=True)
        if number in (4, 6) and got.is_floating_point():
            same = (got.signbit() == want.signbit()) | got.isnan()
            assert bool(same.all()), "the sign of a zero"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("rows, columns", [(70, 131), (32, 64)])
def test_as_eager(rows: int, columns: int, dtype: torch.dtype, store: Path) -> None:
    if dtype is torch.uint8:
        given = torch.randint(0, 250, (rows, columns), dtype=dtype), torch.zeros(columns, dtype=dtype)
        compiled = precast.compile(lambda x, bias: (x.cumsum(-1), *x.cummax(-1)), store=store)
        for got, want in zip(compiled(*given), (given[0].cumsum(-1), *given[0].cummax(-1)), strict=True):
            assert torch.equal(got, want)
        return
    check(precast.compile(program, store=store), inputs(rows, columns, dtype))


def test_sizes_that_vary(store: Path) -> None:
    compiled = precast.compile(program, store=store, dynamic=True)
    for rows, columns in ((40, 50), (7, 64), (33, 9), (8, 300), (64, 31)):
        check(compiled, inputs(rows, columns, torch.float32))


def test_strided_rows_and_several_outer_axes(store: Path) -> None:
    def strided(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        e = (x * 0.1).exp()
        sums = (
            e[::2, 3:].cumsum(-1),
            e[:, ::2].cumsum(-1),
            y.exp().cumsum(-1),
            y.exp().transpose(0, 1).cumsum(-1),
            y.exp().flip(-1).cumsum(-1),
        )
        return *sums, x[::2, 3:].cumsum(-1), y.cummax(-1).values

    given = torch.randn(50, 77), torch.randn(3, 20, 45)
    compiled = precast.compile(strided, store=store)
    for got, want in zip(compiled(*given), strided(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def costly(x: Tensor) -> Tensor:
    return x.exp().cumsum(-1)


def cheap(x: Tensor) -> Tensor:
    return x.cumsum(-1)


@pytest.mark.parametrize(
    "fn, rows, columns, turned",
    [(costly, 4096, 512, True), (costly, 16, 40, True), (costly, 4, 4096, False), (costly, 512, 8, False), (cheap, 4096, 512, False)],
)
def test_where_rows_are_turned(fn: Callable[[Tensor], Tensor], rows: int, columns: int, turned: bool) -> None:
    program, _ = program_of(fn, (torch.randn(rows, columns),), schedule=True)
    (kernel,) = (s for s in program.steps if isinstance(s, Kernel))
    assert ("lines_to_tile_4(" in render_kernel(kernel, {b.name: b for b in program.buffers}).source) is turned
