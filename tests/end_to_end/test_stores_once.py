"""What a kernel adds to memory, or reads from where it writes, happens once for each element, whatever the kernel was fused with.

Each program's last result numbers the same elements by other axes, so that fusing both needs `x // 16` and `x % 16` of one axis.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import precast
from precast.artifact_store import Store

Program = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]


def rows_of_a_sum_are_added(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return torch.zeros(64, 32).index_add(0, i, y.sum(0)), y, y.flatten(0, 1).sum(0)


def rows_of_a_sum_are_multiplied(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return torch.ones(64, 32).index_reduce(0, i, y.sum(0).abs() + 1, "prod"), y, y.flatten(0, 1).sum(0)


def a_sum_is_added_to_an_input(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    r.add_(y.sum(0))
    return y, y.flatten(0, 1).sum(0)


def a_mean_moves(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    r.mul_(0.5).add_(y.amax(0))
    return y, y.flatten(0, 1).sum(1), y.flatten(0, 1).sum(0)


def an_input_is_shifted_by_itself(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor, r: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w + r
    r.copy_(r * 2 + y.mean(0))
    return y, y.flatten(0, 1).sum(0)


PROGRAMS = [
    *(rows_of_a_sum_are_added, rows_of_a_sum_are_multiplied, a_sum_is_added_to_an_input, a_mean_moves),
    an_input_is_shifted_by_itself,
]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Program, dynamic: bool, store: Store) -> None:
    compiled = precast.compile(program, store=store, dynamic=dynamic)
    for batch in (2, 2, 3):
        x, w, i, r = torch.randn(batch, 16, 32), torch.randn(32), torch.randperm(64)[:16], torch.randn(16, 32)
        own = r.clone()
        for want, got in zip((*program(x, w, i, r), r), (*compiled(x, w, i, own), own), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_gradients_of_an_embedding_that_is_the_same_for_every_row_of_a_batch(store: Store) -> None:
    """As in MobileBERT: position embeddings, token types, a scale and a shift, and a linear layer below."""

    class Embeddings(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.kinds = torch.nn.Embedding(64, 32), torch.nn.Embedding(2, 32)
            self.below, self.scale = torch.nn.Linear(96, 32), torch.nn.Parameter(torch.randn(32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.shape[1]
            found = self.below(x) + self.positions(torch.arange(64).expand(1, -1)[:, :rows])
            return (found + self.kinds(torch.zeros(x.shape[:2], dtype=torch.long))) * self.scale

    module, x = Embeddings(), torch.randn(2, 16, 96)
    with torch.enable_grad():
        wanted = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        found = torch.autograd.grad(precast.compile(module, store=store)(x).square().sum(), list(module.parameters()))
    for want, got in zip(wanted, found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
