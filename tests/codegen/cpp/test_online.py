"""Maximum and sum of exponentials in one pass: rows longer than a block, infinities anywhere, NaN, half types, sizes that vary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen.cpp import online
from precast.codegen.cpp.kernel import render_kernel
from precast.codegen.cpp.online import BLOCK, LONG, WIDE
from precast.codegen.cpp.planning.loop_plan import ROW_LIMIT
from precast.lowering.ir.nodes import Kernel
from tests.codegen.cpp.test_transposes import fits
from tests.ops.runners import program_of

F32, BF16 = torch.float32, torch.bfloat16
INF = float("inf")


def rows(columns: int) -> Tensor:
    """Plain ones, and those in which a base has to be taken with care."""
    x = torch.randn(12, columns) * 3
    x[1] = -INF
    x[2, : columns // 2], x[2, columns // 2 :] = -INF, -200.0  # blocks of -inf, then far below
    x[3, columns // 3] = INF
    x[4, : columns // 2], x[4, -1] = -300.0, INF
    x[5, columns // 4] = float("nan")
    x[6, : columns - 1], x[6, -1] = -INF, float("nan")
    x[7, 0], x[7, 1:] = float("nan"), 5.0
    x[8] = torch.linspace(-200, 200, columns)  # each block has a larger maximum
    x[9] = torch.linspace(300, -300, columns)
    x[10] = -1e30
    x[11] = 88.0
    return x


def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Each of its own input: otherwise they would share a loop, which has more than the two reductions."""
    return a.logsumexp(-1), b.log_softmax(-1), c.softmax(-1), F.cross_entropy(d, y, reduction="none"), (e * 0.5).logsumexp(-1)


def check(compiled: Callable[..., tuple[Tensor, ...]], x: Tensor, y: Tensor) -> None:
    inputs = (*(x.clone() for _ in range(5)), y)
    found = compiled(*inputs)
    for got, want in zip(found, program(*inputs), strict=True):
        fits(got, want)
    rtol = 1e-2 if x.dtype is torch.bfloat16 else 1e-6
    torch.testing.assert_close(found[0].double(), x.double().logsumexp(-1), rtol=rtol, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype, columns", [(torch.float32, 2 * BLOCK + 37), (torch.float32, 300), (torch.bfloat16, 3 * BLOCK + 1)])
def test_rows_of_all_kinds(dtype: torch.dtype, columns: int, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[online.Pair] = []
    plain = online.write
    monkeypatch.setattr(online, "write", lambda pair, *rest: (written.append(pair), plain(pair, *rest))[1])
    compiled = precast.compile(program, store=store, dynamic=False)
    check(compiled, rows(columns).to(dtype), torch.randint(0, columns, (12,)))
    assert len(written) == (5 if columns > ROW_LIMIT else 4)  # softmax keeps the exponentials of a row that fits


def users(x: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Exponentials that are needed again: alone, scaled, cast, by two stores, where the result lies in another order or in part of it."""
    power = (x - x.amax(-1, keepdim=True)).exp()
    total = power.sum(-1, keepdim=True)
    return (
        x.softmax(-1) * scale,
        torch.ops.aten._safe_softmax(x + scale, -1),
        (x * 0.5).softmax(-1).bfloat16(),
        power / total,
        (power * 2 + 1) / total,
        torch.cat([(x * 2).softmax(-1), x], -1),
    )


@pytest.mark.parametrize("columns", [ROW_LIMIT + 3, 3 * BLOCK, WIDE + 1, 70_001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exponentials_that_are_needed_again(dtype: torch.dtype, columns: int, store: Path) -> None:
    x, scale = rows(columns).to(dtype), torch.rand(columns).to(dtype)
    found, exact = precast.compile(users, store=store, dynamic=False)(x, scale), users(x.double(), scale.double())
    for got, want, eager in zip(found, exact, users(x, scale), strict=True):
        rtol = 2e-5 if got.dtype is torch.float32 else 2e-2
        torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=1e-7 if dtype is torch.float32 else 1e-2, equal_nan=True)
        assert torch.equal(got.isnan(), eager.isnan())
        assert got[2, : columns // 2].eq(0).all() or eager[2, : columns // 2].ne(0).any(), "behind -inf nothing is left"


@pytest.mark.parametrize(
    "dtype, columns, made", [(F32, ROW_LIMIT + 1, 1), (F32, LONG + 1, 2), (BF16, WIDE, 1), (BF16, WIDE + 1, 2), (F32, 512, 1)]
)
def test_an_exponential_is_made_once(dtype: torch.dtype, columns: int, made: int) -> None:
    """Unless there is no room for it, or it would have left the caches."""
    program, _ = program_of(lambda x: x.softmax(-1), (torch.zeros(8, columns, dtype=dtype),), schedule=True)
    (kernel,) = (s for s in program.steps if isinstance(s, Kernel))
    text = render_kernel(kernel, {b.name: b for b in program.buffers}).source
    loops = text.split("#pragma omp simd")[1:]
    assert sum("exp_f32(" in loop.split("}")[0] or "exp_below_f32(" in loop.split("}")[0] for loop in loops) == made


@pytest.mark.slow
def test_sizes_that_vary(store: Path) -> None:
    compiled = precast.compile(program, store=store, dynamic=True)
    for columns in (70, BLOCK, 2 * BLOCK + 5, 100):
        check(compiled, rows(columns), torch.randint(0, columns, (12,)))
