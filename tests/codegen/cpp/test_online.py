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
from precast.codegen.cpp.online import BLOCK
from precast.codegen.cpp.planning.loop_plan import ROW_LIMIT
from tests.codegen.cpp.test_transposes import fits

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
    monkeypatch.setattr(online, "write", lambda pair, body, parent: (written.append(pair), plain(pair, body, parent)))
    compiled = precast.compile(program, store=store, dynamic=False)
    check(compiled, rows(columns).to(dtype), torch.randint(0, columns, (12,)))
    assert len(written) == (5 if columns > ROW_LIMIT else 4)  # softmax keeps the exponentials of a row that fits


@pytest.mark.slow
def test_sizes_that_vary(store: Path) -> None:
    compiled = precast.compile(program, store=store, dynamic=True)
    for columns in (70, BLOCK, 2 * BLOCK + 5, 100):
        check(compiled, rows(columns), torch.randint(0, columns, (12,)))
