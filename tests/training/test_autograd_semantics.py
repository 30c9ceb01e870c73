"""What surrounds a compiled call that records gradients: hooks, accumulation, modes, errors, changes between calls."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precast


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    with torch.enable_grad():
        yield


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.drop(torch.relu(self.first(x))))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for the file: most of its calls are of one kind, and compile once."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def pair(store: Path) -> tuple[Any, Net, Net]:
    """A module compiled in one piece, that module, and its eager twin."""
    torch.manual_seed(0)
    net = Net()
    twin = copy.deepcopy(net)
    return precast.compile(net, store=store, fullgraph=True), net, twin


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def seeded(function: Any, x: Tensor, seed: int = 3) -> Tensor:
    torch.manual_seed(seed)
    result: Tensor = function(x)
    return result


X = torch.linspace(-1, 1, 48).reshape(6, 8)


def test_dropout_draws_eagers_numbers_and_the_backward_pass_sees_the_same_mask(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, twin = pair
    for seed in range(3):
        mine, theirs = seeded(compiled, X, seed), seeded(twin, X, seed)
        torch.testing.assert_close(mine, theirs)
        mine.sum().backward()
        theirs.sum().backward()
    torch.testing.assert_close(gradients(net), gradients(twin))  # accumulated over three calls


def test_a_graph_is_kept_where_it_is_asked_for(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, _ = pair
    loss = seeded(compiled, X).sum()
    loss.backward(retain_graph=True)
    once = gradients(net)
    loss.backward()
    torch.testing.assert_close(gradients(net), [2 * g for g in once if g is not None])
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_the_gradient_of_a_gradient_is_an_error_that_says_so(pair: tuple[Any, Net, Net]) -> None:
    compiled, _, _ = pair
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(seeded(compiled, x).square().sum(), x, create_graph=True)
    assert gradient.requires_grad
    with pytest.raises(RuntimeError, match="gradient of a gradient"):
        gradient.sum().backward()


def test_what_requires_gradients_may_change_between_calls(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, twin = pair
    for frozen in (True, False, True):
        for module, called in ((net, compiled), (twin, twin)):
            module.zero_grad()
            module.first.requires_grad_(not frozen)
            seeded(called, X).sum().backward()
        assert (net.first.weight.grad is None) == frozen
        torch.testing.assert_close(gradients(net), gradients(twin))
    with torch.no_grad():
        assert not compiled(X).requires_grad


def test_hooks_on_tensors_and_parameters_run(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, twin = pair
    seen: dict[str, list[float]] = {"mine": [], "theirs": []}
    for name, module, called in (("mine", net, compiled), ("theirs", twin, twin)):
        x = X.clone().requires_grad_()
        x.register_hook(lambda g, name=name: seen[name].append(float(g.sum())))
        module.first.weight.register_post_accumulate_grad_hook(lambda p, name=name: seen[name].append(float(p.grad.sum())))
        module.second.bias.register_hook(lambda g: g * 2)
        result = seeded(called, x)
        result.register_hook(lambda g: g * 3)
        result.sum().backward()
    assert len(seen["mine"]) == 2 and sorted(seen["mine"]) == pytest.approx(sorted(seen["theirs"]), rel=1e-4, abs=1e-5)
    torch.testing.assert_close(gradients(net), gradients(twin))


def test_saved_tensors_may_be_packed(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, twin = pair
    packed = []

    def pack(value: Tensor) -> Any:
        packed.append(value.shape)
        return value.numpy(force=True).copy()

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        mine = seeded(compiled, X)
    mine.sum().backward()
    seeded(twin, X).sum().backward()
    assert packed
    torch.testing.assert_close(gradients(net), gradients(twin))


def test_an_error_in_a_hook_leaves_the_call_usable(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, twin = pair
    x = X.clone().requires_grad_()

    def stop(gradient: Tensor) -> None:
        raise KeyboardInterrupt

    handle = net.first.weight.register_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        seeded(compiled, x).sum().backward()
    handle.remove()
    net.zero_grad()
    seeded(compiled, x).sum().backward()
    seeded(twin, X).sum().backward()
    torch.testing.assert_close(gradients(net), gradients(twin))


def test_a_weight_that_was_written_before_the_backward_pass_is_noticed(pair: tuple[Any, Net, Net]) -> None:
    compiled, net, _ = pair
    x = X.clone().requires_grad_()
    loss = seeded(compiled, x).sum()
    with torch.no_grad():
        net.second.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_of_some_results_only(store: Path) -> None:
    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin() * 2, x.exp().t()

    compiled = precast.compile(two, store=store, fullgraph=True)
    for chosen in (0, 1):
        x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
        compiled(x)[chosen].sum().backward()
        two(y)[chosen].sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    weights = torch.rand(6, 8).t()  # a gradient of other strides than its result
    (compiled(x)[1] * weights).sum().backward()
    (two(y)[1] * weights).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_autocast_around_the_call(store: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    twin, exact = copy.deepcopy(net), copy.deepcopy(net)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

    compiled = precast.compile(Wrapped(), store=store, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = compiled(X), twin(X)
    assert mine.dtype == theirs.dtype == torch.bfloat16
    for result in (mine, theirs, exact(X)):
        result.float().square().mean().backward()
    for a, b, c in zip(net.parameters(), twin.parameters(), exact.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None and c.grad is not None
        assert (a.grad - c.grad).abs().max() <= 2 * (b.grad - c.grad).abs().max() + 1e-3 * c.grad.abs().max()
