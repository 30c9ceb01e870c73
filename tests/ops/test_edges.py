"""Values at the edges of their types, where algebra that seems harmless gives another answer than eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import precast

NAN = float("nan")
Fn = Callable[[Tensor], Tensor]

ODD = torch.tensor([1e10, -1e10, NAN, float("inf"), -0.5, 2.7, -2.7, 3e9, *range(90)])

CASES: dict[str, tuple[Fn, Tensor]] = {
    "products of positions wrap": (lambda x: (torch.arange(8) * 2**62 < 0) | (x > 2), torch.zeros(8)),
    "products in two steps wrap": (lambda x: (torch.arange(64) * 2**31 * 2**31 < 0) | (x > 2), torch.zeros(64)),
    "sums of positions wrap": (lambda x: (torch.arange(8) + (2**63 - 3) > 0) | (x > 2), torch.zeros(8)),
    "integers are counted in integers": (lambda x: torch.arange(0.5, 5.5, 1.5, dtype=torch.int64) + x, torch.tensor(1)),
    "integers in between": (lambda x: 1 / x.int().float(), ODD),
    "long integers in between": (lambda x: 1 / x.long().float(), ODD),
    "integers in a reduction": (lambda x: x.int().float().amin() + 1 / x.double().int().double(), ODD),
    "integers of two kinds": (lambda x: 1 / x.int().long().float(), ODD),
    "integers that stay": (lambda x: 1 / (x.int() | 0).clamp(min=-(2**31)).float(), ODD),
    "products of two positions wrap": (lambda x: torch.arange(10**5) * 2 * 10**9 * torch.arange(10**5) // (2 * 10**9) + x, torch.tensor(0)),
    "alpha=0 of a vector": (lambda x: torch.addmv(torch.ones(2), x, x[0], alpha=0), torch.full((2, 2), NAN)),
    "alpha=0 ignores the factors": (lambda x: torch.addmm(torch.ones(2, 2), x, x, alpha=0), torch.full((2, 2), NAN)),
}


@pytest.mark.parametrize("name", CASES)
def test_edges(name: str) -> None:
    fn, x = CASES[name]
    got, want = precast.compile(fn, fullgraph=True)(x), fn(x)
    assert got.dtype is want.dtype and torch.equal(got, want)


def test_ends_that_change_from_call_to_call() -> None:
    def fn(x: Tensor, start: float, end: float) -> Tensor:
        return torch.linspace(start, end, 7) * x

    call = precast.compile(fn, fullgraph=True)
    for start, end in ((0.25, 1.5), (-1.0, 2.5), (3.0, -2.75)):
        torch.testing.assert_close(call(torch.ones(()), start, end), fn(torch.ones(()), start, end), rtol=0, atol=1e-6)


def test_orders_that_change_from_call_to_call() -> None:
    def fn(x: Tensor, order: float) -> Tensor:
        return torch.linalg.vector_norm(x, order)

    call = precast.compile(fn, fullgraph=True)
    for order in (1.5, 2.5, 3.5, 0.0, float("inf"), 2.0):
        x = torch.randn(9)
        torch.testing.assert_close(call(x, order), fn(x, order))
