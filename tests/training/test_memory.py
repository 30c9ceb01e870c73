"""What a call keeps for its backward pass is freed as that pass goes, and nothing is left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

import precast
from precast.artifact_store import Store
from precast.runtime.native import loader

ROWS, WIDTH, LAYERS = 2048, 32, 12
KEPT = ROWS * WIDTH * 4
"""Bytes that each layer keeps."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.open(tmp_path_factory.mktemp("store"))


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x


def allocations(work: Callable[[], object]) -> list[int]:
    """What torch's allocator lent (more than 0 bytes) and took back (less) meanwhile, in order."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    return [event.nbytes() for event in sorted(events, key=lambda e: e.start_ns())]


def freed_on_the_way(call: Callable[[], Tensor], retained: bool = False) -> int:
    """Layers whose memory went before the last gradient of a weight was made. The profiler knows only what it saw being lent."""
    changes = allocations(lambda: call().sum().backward(retain_graph=retained))
    last = max(i for i, change in enumerate(changes) if change == WIDTH * WIDTH * 4)
    return sum(change == -KEPT for change in changes[:last])


@pytest.mark.parametrize("native", [True, False])
def test_it_is_freed_after_its_last_use(native: bool, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And stays where the graph is kept: for a second backward pass, whose gradients are the same."""
    if not native:
        monkeypatch.setattr(loader, "loaded", lambda: None)
    torch.manual_seed(0)
    net = Deep()
    twin, x = copy.deepcopy(net), torch.randn(ROWS, WIDTH)
    compiled = precast.compile(net, store=store, fullgraph=True)
    compiled(x).sum().backward()
    twin(x).sum().backward()
    for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    net.zero_grad()
    assert freed_on_the_way(lambda: compiled(x)) >= LAYERS - 2
    once = [p.grad for p in net.parameters()]
    net.zero_grad()
    results: list[Tensor] = []

    def held() -> Tensor:
        results.append(compiled(x))
        return results[0]

    assert freed_on_the_way(held, retained=True) <= 1  # the gradient of the sum
    net.zero_grad()
    results[0].sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(net.parameters(), once, strict=True))  # type: ignore[arg-type]


class Stopped(Exception):
    """Raised by a hook."""


def test_nothing_is_left_behind(store: Store) -> None:
    """After steps, calls whose results are dropped, errors in hooks before and behind the backward graph, and packed tensors."""
    torch.manual_seed(0)
    net, x = Deep(), torch.randn(ROWS, WIDTH)
    compiled = precast.compile(net, store=store, fullgraph=True)
    compiled(x).sum().backward()

    def stop(gradient: Tensor) -> None:
        raise Stopped

    def stopped(tensor: Tensor | None) -> None:
        result = compiled(x)
        handle = (result if tensor is None else tensor).register_hook(stop)
        with pytest.raises(Stopped):
            result.sum().backward()
        handle.remove()

    def packed() -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
            result = compiled(x)
        result.sum().backward()

    for work in (
        lambda: compiled(x).sum().backward(),
        lambda: compiled(x),
        lambda: stopped(None),
        lambda: stopped(net.layers[0].weight),  # type: ignore[arg-type]
        packed,
    ):
        net.zero_grad()
        for _ in range(2):  # the first may be the first of its kind
            left = sum(allocations(lambda work=work: (work(), net.zero_grad())))  # type: ignore[misc]
        assert left == 0
