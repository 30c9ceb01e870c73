"""What the backward graph reads from memory, and what it computes again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import precast
from precast.artifact_store import Store
from precast.capture.aten import aot_autograd
from precast.capture.aten.joint import recomputation


class Block(nn.Module):
    """A layer norm between products, as in every transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x) + x)).square()


def chain(x: Tensor) -> Tensor:
    for _ in range(12):
        x = (x * 1.5).sin() + 1
    return x


def gated(x: Tensor) -> Tensor:
    a, b = (x @ x.t()).chunk(2, -1)
    return F.silu(a) * b


def two_products(x: Tensor) -> Tensor:
    return F.gelu(x @ x.t()) @ x


def scores(x: Tensor) -> Tensor:
    return (x @ x.t()).softmax(-1) @ x


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {"chain": chain, "gated": gated, "two products": two_products, "scores": scores}


def step(call: Callable[..., Tensor], *args: Tensor) -> list[Tensor]:
    leaves = [a.detach().requires_grad_() for a in args]
    result = call(*leaves)
    result.double().mean().backward()
    return [result.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_eagers(name: str, dynamic: bool, store: Store) -> None:
    compiled = precast.compile(PROGRAMS[name], store=store, dynamic=dynamic)
    for rows in (16, 24):
        x = torch.randn(rows, 48)
        for want, got in zip(step(PROGRAMS[name], x), step(compiled, x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory, wide", [("default", 2), ("less", 1)])
def test_what_a_product_reads_is_kept_or_computed_again_by_the_option(
    memory: str, wide: int, kept: list[torch.fx.Node], tmp_path: Path
) -> None:
    """The activation lies in memory for the second product, whose gradient reads it: it may stay there, or be computed once more."""
    x = torch.randn(32, 64)
    compiled = precast.compile(two_products, store=tmp_path, fullgraph=True, options={"activation_memory": memory})
    for want, got in zip(step(two_products, x), step(compiled, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len([n for n in kept if n.meta["val"].numel() == 32 * 32]) == wide


def test_torchs_door_has_the_option_too(kept: list[torch.fx.Node], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path))
    torch._dynamo.reset()
    compiled = torch.compile(two_products, backend="precast", options={"activation_memory": "less"})
    x = torch.randn(32, 64)
    for want, got in zip(step(two_products, x), step(compiled, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert len([n for n in kept if n.meta["val"].numel() == 32 * 32]) == 1


def test_a_chain_keeps_its_input_alone(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    step(precast.compile(lambda x: (x * 2).sin().exp().cos(), store=tmp_path, fullgraph=True), torch.randn(64))
    assert kept == []


def test_what_is_dear_is_kept(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    """Products, random draws and sums over rows."""

    def program(x: Tensor) -> Tensor:
        y = F.dropout(x @ x.t(), 0.5)
        return (y - y.logsumexp(-1, keepdim=True)).tanh()

    step(precast.compile(program, store=tmp_path, fullgraph=True), torch.randn(16, 48))
    assert kept and all(recomputation._is_pointwise(n) or not recomputation._in_a_kernel(n) or n.meta["val"].numel() <= 16 for n in kept)


def test_what_a_program_says_of_recomputation_is_done(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    """`torch.utils.checkpoint` chooses itself: nothing is marked."""
    seen: list[bool] = []
    cut = aot_autograd.cut

    def marks(joint: torch.fx.GraphModule, metadata: Any, memory: str) -> Any:
        before = {n.name: n.meta.get("recompute") for n in joint.graph.nodes}
        recomputation.choose(joint, metadata.num_forward)
        seen.append({n.name: n.meta.get("recompute") for n in joint.graph.nodes} != before)
        return cut(joint, metadata, memory)

    monkeypatch.setattr(aot_autograd, "cut", marks)
    block, x = Block(), torch.randn(8, 64)
    step(precast.compile(lambda x: checkpoint(block, x, use_reentrant=False), store=store), x)
    step(precast.compile(block, store=store), x)
    assert seen == [False, True]


def test_budgets_are_the_partitioners(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    with torch._functorch.config.patch(activation_memory_budget=0.0):
        step(precast.compile(two_products, store=tmp_path, fullgraph=True), torch.randn(16, 48))
    assert kept == [], "a budget of nothing keeps the inputs alone"


def test_marks_cover_what_the_backward_pass_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """functorch keeps what is marked to be kept, and nothing that is marked to be computed again."""
    cut = aot_autograd.cut
    checked: list[int] = []

    def seen(joint: torch.fx.GraphModule, metadata: Any, memory: str) -> Any:
        forward, backward = cut(joint, metadata, memory)
        values: Any = next(iter(forward.graph.find_nodes(op="output"))).args[0]
        results = {n.name for n in values[: metadata.num_forward]}
        names = {n.name for n in values[metadata.num_forward :]} - results
        marked = {n.name: n.meta["recompute"] for n in joint.graph.nodes if "recompute" in n.meta}
        again = {name for name, mark in marked.items() if mark is CheckpointPolicy.MUST_RECOMPUTE}
        assert not names & again
        checked.append(len(again))
        return forward, backward

    monkeypatch.setattr(aot_autograd, "cut", seen)
    step(precast.compile(Block(), store=tmp_path, fullgraph=True), torch.randn(32, 64))
    assert checked and checked[0] > 0


def test_images_too(kept: list[torch.fx.Node], tmp_path: Path) -> None:
    """Where other passes have marked what is computed again (copies of weights, places of maxima), the rest is chosen as anywhere."""

    def of(memory: str) -> tuple[list[Tensor], int]:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Conv2d(16, 16, 1), nn.SiLU(), nn.Conv2d(16, 8, 1)
        )
        x = torch.linspace(-1, 1, 2 * 3 * 20 * 20).reshape(2, 3, 20, 20)
        compiled = net if memory == "eager" else precast.compile(net, store=tmp_path, fullgraph=True, options={"activation_memory": memory})
        kept.clear()
        compiled(x).square().mean().backward()
        return [p.grad for p in net.parameters() if p.grad is not None], sum(n.meta["val"].nbytes for n in kept)

    wanted, _ = of("eager")
    plain, by_default = of("default")
    sparing, less = of("less")
    assert less < by_default, "the activation between the products is computed again"
    for want, *found in zip(wanted, plain, sparing, strict=True):
        for got in found:
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
