"""A network that is trained in tests that build it in one process and serve it in another: convolution, statistics, attention, a norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        self.project = nn.Linear(16, 3 * 16)
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x).flatten(2).transpose(1, 2)
        q, k, v = self.project(rows).unflatten(2, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        logits: Tensor = self.last(nn.functional.gelu(self.norm(rows + seen)).mean(1))
        return logits


def batches() -> list[tuple[Tensor, Tensor]]:
    """Ten times the same, so that the loss falls."""
    generator = torch.Generator().manual_seed(1)
    x, wanted = torch.randn(8, 3, 8, 8, generator=generator), torch.randint(0, 5, (8,), generator=generator)
    return [(x, wanted)] * 10
