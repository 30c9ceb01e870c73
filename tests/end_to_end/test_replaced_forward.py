"""Modules whose `forward` was replaced on the instance (as hooks of accelerate and peft do), and partials in the place of functions."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of

X = torch.randn(3, 8)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(8, 8)
        self.b = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.b(torch.relu(self.a(x)))
        return result


def one_more(module: Any, *args: Any, by: float = 1.0) -> Any:
    return module._old_forward(*args) + by


def closure(module: Any) -> None:
    old = module.forward
    module.forward = lambda x: old(x) * 2


def method(module: Any) -> None:
    module.forward = types.MethodType(lambda self, x: Net.forward(self, x) - 3 if isinstance(self, Net) else x, module)


class Shifted(torch.nn.Linear):
    def shifted(self, x: torch.Tensor) -> torch.Tensor:
        return self(x) + 2  # type: ignore[no-any-return]


def anothers(module: Any) -> None:
    module.forward = Shifted(8, 8).shifted


def partial(module: Any) -> None:
    """As accelerate puts its hooks around a module."""
    module._old_forward = module.forward
    module.forward = functools.update_wrapper(functools.partial(one_more, module), module._old_forward)


def compiled_variants(compiled: Any) -> int:
    return sum(len(program.variants) for program in site_of(compiled).programs)


def agrees(compiled: Any, module: torch.nn.Module) -> None:
    """At the first call, and where the native checks have taken over."""
    for _ in range(3):
        torch.testing.assert_close(compiled(X), type(module).__call__(module, X))


REPLACE: dict[str, Callable[[Any], None]] = {"closure": closure, "method": method, "anothers": anothers, "partial": partial}


@pytest.mark.parametrize("within", [False, True], ids=["module", "submodule"])
@pytest.mark.parametrize("how", REPLACE)
def test_a_replaced_forward_is_compiled_stored_and_guarded(how: str, within: bool, store: Store, recwarn: pytest.WarningsRecorder) -> None:
    def replaced() -> Any:
        net = Net()
        REPLACE[how](net.a if within else net)
        return net

    net = replaced()
    with torch.no_grad():
        compiled = precast.compile(net, store=store)
        agrees(compiled, net)
        assert compiled_variants(compiled) == 1
        other = replaced()
        agrees(precast.load(other, store=store, require="hit"), other)
        with pytest.raises(precast.GuardMiss):
            precast.load(Net(), store=store, require="hit")(X)
        part = net.a if within else net
        kept = part.__dict__.pop("forward")
        agrees(compiled, net)
        part.forward = lambda x: x[:, :8] + 5
        agrees(compiled, net)
        part.forward = kept
        known = compiled_variants(compiled)
        agrees(compiled, net)
        assert compiled_variants(compiled) == known, "the first variant fits again"
    assert not recwarn.list, [str(w.message) for w in recwarn]


def test_hooks_and_then_a_replaced_forward(store: Store) -> None:
    net = Net()
    net.register_forward_hook(lambda module, args, result: result * 2)
    with torch.no_grad():
        compiled = precast.compile(net, store=store)
        agrees(compiled, net)
        closure(net)
        agrees(compiled, net)
        del net.__dict__["forward"]
        agrees(compiled, net)


def test_what_a_partial_calls_and_with_what(store: Store) -> None:
    net = Net()
    partial(net.a)
    with torch.no_grad():
        compiled = precast.compile(net, store=store)
        agrees(compiled, net)
        net.a.forward.keywords["by"] = 7.0
        agrees(compiled, net)
        net.a.forward = functools.partial(one_more, net.a, by=2.0)
        agrees(compiled, net)
        net.a.forward = functools.partial(lambda module, x: module._old_forward(x) * 9, net.a)
        agrees(compiled, net)
        third = Net().a
        partial(third)
        net.a.forward = functools.partial(one_more, third)
        agrees(compiled, net)
