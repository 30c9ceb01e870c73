"""The model that the examples of this folder serve, and the factory that `serving.toml` builds it from."""

from __future__ import annotations

from typing import Any

import torch

FEATURES, CLASSES = 32, 4


class Classifier(torch.nn.Module):
    """Features (batch, FEATURES), float32, to probabilities (batch, CLASSES)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # in place of a checkpoint: every process has the same weights
        self.layers = torch.nn.Sequential(torch.nn.Linear(FEATURES, 64), torch.nn.GELU(), torch.nn.Linear(64, CLASSES))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.layers(features), -1)


def make() -> Classifier:
    """The model, ready to serve."""
    return Classifier().eval()


def classifier() -> tuple[Classifier, list[tuple[tuple[torch.Tensor, ...], dict[str, Any]]]]:
    """The factory of the build file: two batch sizes, of which the second artifact serves every other size as well."""
    return make(), [((torch.zeros(1, FEATURES),), {}), ((torch.zeros(8, FEATURES),), {})]
