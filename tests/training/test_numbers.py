"""Python numbers that vary from call to call of a function that records gradients: one artifact, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.artifact_store import Store


def scaled(x: Tensor, scale: float) -> Tensor:
    return x.sin() * scale


def computed(x: Tensor, scale: float) -> Tensor:
    return x.sin() * (scale * scale + 1) / scale - x


def compared(x: Tensor, scale: float) -> Tensor:
    y = x.sin() * scale
    return torch.where(y > scale / 2, y, y * scale) + F.leaky_relu(x, scale)


def added(x: Tensor, scale: float) -> Tensor:
    return torch.add(x.exp(), x.cos(), alpha=scale) + scale


SLOW = pytest.mark.slow


@pytest.mark.parametrize("function", [scaled, computed, pytest.param(compared, marks=SLOW), pytest.param(added, marks=SLOW)])
def test_floats_that_vary(function: Callable[[Tensor, float], Tensor], tmp_path: object) -> None:
    """The second value is compiled for all; a program that is loaded anew is served by the same artifacts."""
    store = Store.open(str(tmp_path))
    compiled = precast.compile(function, store=store)
    values = [0.5, 0.25, 0.75, -0.3, 1e-30, 7.0]
    for called in (compiled, precast.load(function, store=store, require="hit")):
        for scale in values:
            found = []
            for one in (called, function):
                x = torch.linspace(-1, 1, 24).reshape(4, 6).requires_grad_()
                result = one(x, scale)
                result.sum().backward()
                found.append((result.detach(), x.grad))
            torch.testing.assert_close(*found)
    assert len(list(store.manifests())) == 2


def test_a_loss_scale_and_a_rate_of_a_whole_step(tmp_path: object) -> None:
    """Numbers that a loop gives to its compiled step each time compile nothing after the second."""
    store = Store.open(str(tmp_path))
    weight = torch.nn.Parameter(torch.linspace(-1, 1, 6))

    def step(x: Tensor, scale: float, rate: float) -> Tensor:
        loss = (x * weight).tanh().square().mean() * scale
        loss.backward()
        with torch.no_grad():
            assert weight.grad is not None
            weight.sub_(weight.grad, alpha=rate / scale)
        weight.grad = None
        return loss.detach() / scale

    x, start, found = torch.linspace(0, 1, 6), weight.detach().clone(), []
    compiled = precast.compile(step, store=store)
    for called in (compiled, step):
        with torch.no_grad():
            weight.copy_(start)
        counts, losses = [], []
        for i in range(5):
            losses.append(called(x, 2.0**i + 0.5, 0.1 / (i + 1)))
            counts.append(len(list(store.manifests())))
        found.append(torch.stack([*losses, weight.detach().sum()]))
        assert counts[1:] == counts[1:2] * 4
    torch.testing.assert_close(*found)
