"""Programs for the build tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

import precast

Calls = list[tuple[tuple[Any, ...], dict[str, Any]]]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return helper(self.linear(x)) * scale


def helper(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x) + 1


def net(batch: int = 2) -> tuple[torch.nn.Module, Calls]:
    return Net().eval(), [((torch.randn(batch, 8),), {}), ((torch.randn(batch + 3, 8),), {"scale": 2.0})]


def net_of_another_kind() -> tuple[torch.nn.Module, Calls]:
    return Net().eval(), [((torch.randn(77, 8).double(),), {})]


def sine() -> tuple[Callable[..., Any], Calls]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) * 2

    return f, [((torch.randn(5),), {})]


def branch(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if x.sum() > 0:
        return y.sin()
    return y.cos()


def branching() -> tuple[Callable[..., Any], Calls]:
    return branch, [((torch.ones(4),), {}), ((-torch.ones(4),), {})]


def raises() -> None:
    raise RuntimeError("the weights file is not there")


def _weights() -> Any:
    return json.loads("{not json")


def raises_in_a_library() -> Any:
    return _weights()


def raises_with_a_cause() -> None:
    try:
        raises()
    except RuntimeError as error:
        raise ValueError("no model") from error


class Raising(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("never trained")


def raising() -> tuple[torch.nn.Module, Calls]:
    return Raising().eval(), [((torch.randn(2),), {})]


def returns_three() -> int:
    return 3


def compiled() -> tuple[Callable[..., Any], Calls]:
    return precast.compile(torch.sin), [((torch.ones(2),), {})]


def no_signatures() -> tuple[Callable[..., Any], Calls]:
    return torch.sin, []


def not_a_signature() -> tuple[Callable[..., Any], Any]:
    return torch.sin, [torch.ones(1)]


def misfits() -> tuple[Callable[..., Any], Calls]:
    """Its first signature fits, the others do not."""
    return Net().eval(), [((torch.randn(2, 8),), {}), ((torch.randn(2, 8), 1.0, 2.0), {}), ((), {}), ((torch.randn(2, 8),), {"size": 3})]


def exits(status: Any = 0) -> None:
    raise SystemExit(status)


def breaks_and_raises() -> tuple[Callable[..., Any], Calls]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        if x.sum() > 0:
            return y @ torch.ones(7)
        return y.cos()

    return f, [((torch.ones(4),), {}), ((-torch.ones(4),), {})]


def net_in_training() -> tuple[torch.nn.Module, Calls]:
    return Net(), [((torch.randn(4, 8),), {}), ((torch.randn(7, 8),), {})]


def mean_loss() -> tuple[Any, Calls]:
    """Of a result of the network, which records gradients, and what was wanted."""
    return torch.nn.functional.mse_loss, [((torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)), {})]


def momentum() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9)


def no_rule() -> torch.optim.Optimizer:
    return torch.optim.LBFGS([torch.nn.Parameter(torch.zeros(3))])
