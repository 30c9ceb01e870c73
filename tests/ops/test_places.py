"""Positions that are known when a program is compiled, at a dimension's bound and beyond: the last one is read, the next is an error.

An index that lies inside for sure is not checked at run time, so that what is sure has to be right by one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import precast

Fn = Callable[[Tensor], Tensor]
ROWS = 8

FORMS: dict[str, Callable[[int], Fn]] = {
    "x[arange]": lambda n: lambda x: x[torch.arange(n)] * 2,
    "x[arange from 1]": lambda n: lambda x: x[torch.arange(1, n)] * 2,
    "x[arange + 1]": lambda n: lambda x: x[torch.arange(n - 1) + 1] * 2,
    "x[2 * arange]": lambda n: lambda x: x[torch.arange((n + 1) // 2) * 2 + (1 - n % 2)] * 2,
    "x[arange // 2]": lambda n: lambda x: x[torch.arange(2 * n) // 2] * 2,
    "x[arange % n]": lambda n: lambda x: x[torch.arange(3 * n) % n] * 2,
    "x[-arange - 1]": lambda n: lambda x: x[-torch.arange(n) - 1] * 2,
    "x[n - 1 - arange]": lambda n: lambda x: x[n - 1 - torch.arange(n)] * 2,
    "x[list]": lambda n: lambda x: x[[0, n - 1]] * 2,
    "x[:, arange]": lambda n: lambda x: x.t()[:, torch.arange(n)] * 2,
    "x[arange, arange]": lambda n: lambda x: x[torch.arange(n), torch.arange(n) % 2] * 2,
    "x[a + b]": lambda n: lambda x: x[torch.arange(n - 2)[:, None] + torch.arange(3)] * 2,
    "index_select": lambda n: lambda x: x.index_select(0, torch.arange(n)) * 2,
    "gather": lambda n: lambda x: x.gather(0, torch.arange(n)[:, None]) * 2,
    "embedding": lambda n: lambda x: F.embedding(torch.arange(n), x) * 2,
    "take": lambda n: lambda x: torch.take(x, torch.arange(2 * n)) * 2,
    "index_put": lambda n: lambda x: x.index_put((torch.arange(n),), torch.tensor(7.0)),
    "scatter": lambda n: lambda x: x.scatter(0, torch.arange(n - 1, n)[:, None], 7.0),
    "index_add": lambda n: lambda x: x.index_add(0, torch.arange(n), torch.ones(n, 2)),
    "index_copy": lambda n: lambda x: x.index_copy(0, torch.arange(n - 2, n), torch.ones(2, 2)),
    "index_fill": lambda n: lambda x: x.index_fill(0, torch.arange(n), 7.0),
}
"""Each reads or writes the positions up to `n - 1`."""


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", FORMS)
def test_the_last_position_and_the_next(name: str, dynamic: bool, tmp_path: Path) -> None:
    x = torch.arange(2.0 * ROWS).reshape(ROWS, 2)
    inside, outside = FORMS[name](ROWS), FORMS[name](ROWS + 1)
    assert torch.equal(precast.compile(inside, store=str(tmp_path), fullgraph=True, dynamic=dynamic)(x), inside(x))
    with pytest.raises((IndexError, RuntimeError)):
        outside(x)
    with pytest.raises((IndexError, RuntimeError), match="out of (bounds|range)|torch before 2.12 keeps no text"):
        precast.compile(outside, store=str(tmp_path), dynamic=dynamic)(x)


def test_one_row_more_than_there_are_at_a_later_call(tmp_path: Path) -> None:
    """Sizes as symbols: what is inside for one call is not for the next."""

    def fn(x: Tensor) -> Tensor:
        return x[torch.arange(x.shape[0] * 2 - ROWS)] * 2

    compiled = precast.compile(fn, store=str(tmp_path), dynamic=True)
    for rows in (ROWS, ROWS - 2, ROWS - 1):
        x = torch.randn(rows, 2)
        assert torch.equal(compiled(x), fn(x))
    with pytest.raises((IndexError, RuntimeError), match="out of (bounds|range)"):
        compiled(torch.randn(ROWS + 1, 2))


def overwritten(x: Tensor, y: Tensor) -> Tensor:
    z = x.flip(0) + y
    x.add_(z)
    y.copy_(x)
    return z * 1


def overwritten_in_between(x: Tensor, y: Tensor) -> Tensor:
    z = x.t() * 2 + y
    x.mul_(3)
    y.copy_(z)
    return z + x


def overwritten_twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x.roll(1, 0) - y
    y.copy_(x.flip(1))
    x.copy_(z)
    return z.sum(0), y + z


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("fn", [overwritten, overwritten_in_between, overwritten_twice])
def test_what_a_producer_reads_is_not_overwritten_by_its_consumer(fn: Callable[..., object], dynamic: bool, tmp_path: Path) -> None:
    """Fusion moves a producer to its consumer: not past a write of what it reads."""
    compiled = precast.compile(fn, store=str(tmp_path), fullgraph=True, dynamic=dynamic)
    mine = [torch.randn(6, 6) for _ in range(2)]
    theirs = [t.clone() for t in mine]
    torch.testing.assert_close(compiled(*mine), fn(*theirs), rtol=0, atol=1e-6)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
