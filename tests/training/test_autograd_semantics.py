"""What surrounds a compiled call that records gradients: hooks, accumulation, modes, errors, changes between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import precast


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


PACKINGS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "contiguous": (lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t),
    "on the way back": (lambda t: t, lambda t: t.contiguous()),
    "negated when it is read": (lambda t: t, lambda t: torch._neg_view(-t) if t.is_floating_point() else t),
    "other strides": (lambda t: t.clone(), lambda t: t.t().contiguous().t() if t.dim() == 2 else t),
}


@pytest.mark.parametrize("name", PACKINGS)
def test_a_packing_may_lose_the_layout(name: str, tmp_path: Path) -> None:
    """As `save_on_cpu` does, which copies images of any memory format into contiguous memory."""
    images = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3), nn.Flatten(), nn.Linear(200, 4)
    )
    twin, x = copy.deepcopy(images), torch.randn(2, 3, 16, 16)
    compiled = precast.compile(images, store=tmp_path, fullgraph=True)
    with torch.autograd.graph.saved_tensors_hooks(*PACKINGS[name]):
        mine = compiled(x)
    mine.square().sum().backward()
    twin(x).square().sum().backward()
    for got, want in zip(images.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(got.grad, want.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "unpack, said",
    [
        (lambda t: t.double(), "gave back torch.float64 .* was saved"),
        (lambda t: t[:1], r"gave back torch.float32 \[1.* was saved"),
        (lambda t: t.to_sparse(), "gave back torch.sparse_coo torch.float32 .* was saved"),
        (lambda t: "text", "expected to be a Tensor"),  # autograd's own
    ],
    ids=["dtype", "size", "layout", "type"],
)
def test_a_packing_that_gives_back_something_else_is_named(unpack: Callable[[Tensor], Any], said: str, pair: tuple[Any, Net, Net]) -> None:
    compiled, _, _ = pair
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        result = seeded(compiled, X)
    with pytest.raises((precast.PrecastError, TypeError), match=said):
        result.sum().backward()


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


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.body(x).tanh()
        return self.left(found), self.right(found)


@pytest.mark.parametrize("door", ["precast", "torch"])
def test_what_the_loss_does_not_use_gets_no_gradient(door: str, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None, and not zeros, which an optimiser would take for a gradient: weight decay and momentum go on with those."""
    monkeypatch.setenv("PRECAST_STORE", str(store))
    torch.manual_seed(0)
    net = TwoHeads()
    twin = copy.deepcopy(net)
    compiled = precast.compile(net, store=store, fullgraph=True) if door == "precast" else torch.compile(net, backend="precast")
    for chosen in (0, 1):
        for module, called in ((net, compiled), (twin, twin)):
            module.zero_grad()
            called(X)[chosen].sum().backward()
        assert (net.left.weight.grad is None, net.right.weight.grad is None) == (chosen == 1, chosen == 0)
        torch.testing.assert_close(gradients(net), gradients(twin))


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


def test_a_gradient_with_a_graph_of_its_own_is_given(store: Path) -> None:
    """Of one gradient, too, whatever its shape: only going through it is an error."""
    compiled = precast.compile(lambda a: a.sin() * 2, store=store, fullgraph=True)
    for shape in ((3,), (1, 3), (1,), (1, 1)):
        a = torch.rand(shape, requires_grad=True)
        (gradient,) = torch.autograd.grad(compiled(a).sum(), a, create_graph=True)
        torch.testing.assert_close(gradient, 2 * a.cos())
        with pytest.raises(RuntimeError, match="gradient of a gradient"):
            gradient.sum().backward()


def doubled_in_place(a: Tensor, b: Tensor) -> Tensor:
    a.mul_(2)
    return a + b


def test_what_is_written_where_autograd_sees_it_overlaps_nothing(store: Path) -> None:
    """A variant compiled for tensors that lie apart serves none that overlap."""
    compiled = precast.compile(doubled_in_place, store=store)
    apart = torch.rand(6, requires_grad=True) * 1, torch.rand(6, requires_grad=True) * 1
    compiled(apart[0][:4], apart[1][2:])
    found = []
    for function in (compiled, doubled_in_place):
        leaf = torch.linspace(1, 2, 6).requires_grad_()
        whole = leaf * 1
        result = function(whole[:4], whole[2:])
        result.sum().backward()
        found.append((result.detach(), leaf.grad))
    torch.testing.assert_close(found[0], found[1])


def recorded_inside(a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        recorded = (a * w).sin()
    return recorded, a * 2


def test_a_call_that_records_none_may_hold_code_that_does(store: Path) -> None:
    compiled = precast.compile(recorded_inside, store=store, fullgraph=True)
    found = []
    for function in (compiled, compiled, recorded_inside):
        a, w = torch.linspace(0, 1, 3).requires_grad_(), torch.linspace(1, 2, 3).requires_grad_()
        with torch.no_grad():
            results = function(a, w)
        assert [t.requires_grad for t in results] == [True, False]
        results[0].sum().backward()
        found.append((a.grad, w.grad))
    torch.testing.assert_close(found[0], found[2])
    torch.testing.assert_close(found[1], found[2])


def recorded_view(a: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        recorded = a.sin()
    return recorded, recorded[1:]


class Force(nn.Module):
    """A gradient as the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.energy(x).square().sum(), x)[0]


def test_views_and_gradients_inside_of_a_call_that_records_none(store: Path) -> None:
    compiled = precast.compile(recorded_view, store=store)
    found = []
    for function in (compiled, recorded_view):
        a = torch.linspace(0, 1, 3).requires_grad_()
        with torch.no_grad():
            results = function(a)
        (results[0].sum() + results[1].sum()).backward()
        found.append(a.grad)
    torch.testing.assert_close(found[0], found[1])
    force, x = Force(), torch.rand(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(precast.compile(force, store=store)(x), force(x))


def test_sparse_gradients_are_eagers(store: Path) -> None:
    embedding = nn.Embedding(6, 3, sparse=True)

    def looked_up(index: Tensor) -> Tensor:
        return embedding(index) * 2

    with pytest.warns(UserWarning, match="not dense"):
        precast.compile(looked_up, store=store)(torch.tensor([1, 2, 2])).sum().backward()
    assert embedding.weight.grad is not None and embedding.weight.grad.layout is torch.sparse_coo
    assert embedding.weight.grad.to_dense().sum() == 18


def test_a_power_that_varies(store: Path) -> None:
    compiled = precast.compile(lambda a, p: a**p, store=store, fullgraph=True)
    for p in (2, 3, 4):
        a = torch.rand(3, requires_grad=True)
        compiled(a, p).sum().backward()
        torch.testing.assert_close(a.grad, p * a.detach() ** (p - 1))


def written_through_views(a: Tensor, b: Tensor) -> Tensor:
    c = (a - 1).as_strided(a.shape, a.stride()).as_strided(a.shape, a.stride())
    c += b
    return c * 2


@pytest.mark.parametrize("recorded", [True, False])
def test_a_view_of_a_strided_view_that_is_written_is_eagers(recorded: bool, tmp_path: Path) -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        return written_through_views(a, b) + recorded

    a, b = torch.rand(3, 4, requires_grad=recorded), torch.rand(3, 4)
    with pytest.warns(UserWarning, match="as_strided takes of another view is written"):
        torch.testing.assert_close(precast.compile(program, store=tmp_path)(a, b), program(a, b))


def test_a_module_that_gets_its_parameters_from_its_first_call(store: Path) -> None:
    """As one graph, as with torch.compile; parameters that are asked for after the call are those that it made."""
    torch.manual_seed(0)
    lazy = nn.LazyLinear(4)
    compiled = precast.compile(lazy, store=store, fullgraph=True)
    for _ in range(2):
        result = compiled(X)
        result.square().sum().backward()
    twin = nn.Linear(8, 4)
    twin.load_state_dict(compiled.state_dict())
    for _ in range(2):
        twin(X).square().sum().backward()
    assert type(lazy) is nn.Linear and isinstance(compiled, nn.Linear)
    torch.testing.assert_close(result, twin(X))
    torch.testing.assert_close(gradients(compiled), gradients(twin))
