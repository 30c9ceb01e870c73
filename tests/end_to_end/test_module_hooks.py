"""Modules with hooks: torch numbers the hooks of a process, and an artifact fits whatever their numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store

X = torch.arange(6.0).reshape(2, 3)


def doubled(module: torch.nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def more(module: torch.nn.Module, args: Any, kwargs: Any, result: torch.Tensor) -> torch.Tensor:
    return result + len(kwargs)


def shifted(module: torch.nn.Module, args: Any) -> Any:
    return (args[0] + 1,)


def given(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    return args, {**kwargs, "scale": 3.0}


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.linear(x) * scale


Change = Callable[[Layer], Any]
CHANGES: list[Change] = [
    lambda layer: layer.register_forward_hook(doubled),
    lambda layer: layer.linear.register_forward_pre_hook(shifted),
    lambda layer: layer.register_forward_pre_hook(given, with_kwargs=True),
    lambda layer: layer.register_forward_hook(more, with_kwargs=True, prepend=True),
    lambda layer: layer.linear.register_forward_hook(doubled, always_call=True),
]


def layer_with(changes: list[Change]) -> Layer:
    layer = Layer().eval()
    for change in changes:
        change(layer)
    return layer


@pytest.mark.parametrize("count", range(1, len(CHANGES) + 1))
@torch.no_grad()
def test_numbers_of_hooks_do_not_matter(count: int, store: Store) -> None:
    precast.compile(layer_with(CHANGES[:count]), store=store)(X)
    Layer().register_forward_hook(doubled)  # takes a number
    other = layer_with(CHANGES[:count])
    served = precast.load(other, store=store, require="hit")
    torch.testing.assert_close(served(X), other(X))
    fewer = layer_with(CHANGES[: count - 1])
    with pytest.raises(precast.GuardMiss):
        precast.load(fewer, store=store, require="hit")(X)


@torch.no_grad()
def test_which_hook_has_which_flag_matters(store: Store) -> None:
    """The same hooks under the same flags, but not each the same."""

    def either(module: torch.nn.Module, args: Any, *rest: Any) -> torch.Tensor:
        return rest[-1] + len(rest)  # type: ignore[no-any-return]

    for first, second in ((True, False), (False, True)):
        layer = Layer().eval()
        layer.register_forward_hook(either, with_kwargs=first)
        layer.register_forward_hook(doubled)
        layer.register_forward_hook(either, with_kwargs=second)
        torch.testing.assert_close(precast.compile(layer, store=store)(X), layer(X))


@torch.no_grad()
def test_hooks_that_come_and_go(store: Store) -> None:
    layer = Layer().eval()
    compiled = precast.compile(layer, store=store)
    handles = []
    for change in CHANGES:
        handles.append(change(layer))
        for _ in range(2):
            torch.testing.assert_close(compiled(X), layer(X))
    for handle in handles:
        handle.remove()
        for _ in range(2):
            torch.testing.assert_close(compiled(X), layer(X))
