"""Training programs in which a replayed CUDA graph could overwrite what somebody still needs: each gives what eager has to give, too.

A trap is a function of a model, of what is called in its place (the model, or the compiled one), and of a device; it gives tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Called = Callable[..., Tensor]
Trap = Callable[[nn.Module, Called, str], list[Tensor]]
STEPS = 7


def mlp() -> nn.Module:
    """What the traps train."""
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 8))


def batches(device: str, count: int = STEPS) -> Iterator[Tensor]:
    """Batches at addresses of their own."""
    generator = torch.Generator().manual_seed(7)
    return iter([torch.randn(4, 16, generator=generator).to(device) for _ in range(count)])


def gradients(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters' gradients, which are then dropped."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return found


def loop(model: nn.Module, called: Called, device: str, to_none: bool = True) -> list[Tensor]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for x in batches(device):
        loss = called(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def gradients_that_stay(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    """`set_to_none=False`: the gradients are zeroed where they lie, and added to."""
    return loop(model, called, device, to_none=False)


def two_calls_then_a_backward(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for x in batches(device):
        (called(x).square().mean() + called(x.flip(0) * 2).sin().mean()).backward()
        found += gradients(model)
    return found


def two_backwards_in_the_other_order(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for x in batches(device):
        first, second = called(x).square().mean(), called(-x).sin().mean()
        second.backward()
        found += gradients(model)
        first.backward()
        found += gradients(model)
    return found


def many_calls_then_their_backwards(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    """More than there are captures."""
    found = []
    for _ in range(3):
        losses = [called(x).square().mean() for x in batches(device, 6)]
        for loss in losses:
            loss.backward()
            found += gradients(model)
    return found


def a_graph_that_is_retained(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found, before = [], None
    for x in batches(device):
        loss = called(x).square().mean()
        loss.backward(retain_graph=True)
        found += gradients(model)
        if before is not None:  # of the step before, whose forward pass is older than the last
            before.backward()
            found += gradients(model)
        before = loss
    return found


def accumulation(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for step, x in enumerate(batches(device, 12)):
        (called(x).square().mean() / 4).backward()
        if step % 4 == 3:
            found += gradients(model)
    return found


def calls_without_gradients_between(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for x in batches(device):
        loss = called(x).square().mean()
        with torch.no_grad():
            found.append(called(x * 3).clone())
        loss.backward()
        found += gradients(model)
    return found


def backwards_that_never_come(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found, kept = [], []
    for step, x in enumerate(batches(device, 10)):
        kept.append(called(x + 1))
        if step == 5:
            kept.clear()
        called(x * 2)
        called(x).square().mean().backward()
        found += gradients(model)
    return [*found, *(k.detach() for k in kept)]


def gradients_that_are_kept(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    kept: list[Tensor] = []
    hook = next(model.parameters()).register_hook(kept.append)
    for x in batches(device):
        kept += torch.autograd.grad(called(x).square().mean(), list(model.parameters()))
    hook.remove()
    return kept


def results_that_are_kept(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    kept, found = [], []
    for x in batches(device):
        kept.append(called(x))
        kept[-1].square().mean().backward()
        found += gradients(model)
    return [*found, *(k.detach() for k in kept)]


def results_that_are_written(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for x in batches(device):
        result = called(x)
        result.mul_(2).add_(1)
        result.square().mean().backward()
        found += [result.detach().clone(), *gradients(model)]
    return found


def weights_that_move(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for step, x in enumerate(batches(device, 12)):
        if step == 5:
            for p in model.parameters():
                p.data = p.data * 0.5
        if step == 8:
            model.load_state_dict({k: v.clone() + 0.1 for k, v in model.state_dict().items()}, assign=True)
        called(x).square().mean().backward()
        found += gradients(model)
    return found


def an_input_with_a_gradient(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for x in batches(device):
        x.requires_grad_()
        called(x).square().mean().backward()
        assert x.grad is not None
        found += [x.grad, *gradients(model)]
    return found


def results_without_a_gradient(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    """Gradients of results in other layouts, and expanded ones."""
    found = []
    for x in batches(device):
        called(x).sum().backward()
        found += gradients(model)
        called(x).t().contiguous().square().sum().backward()
        found += gradients(model)
    return found


def saved_tensors_elsewhere(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for step, x in enumerate(batches(device, 9)):
        if step % 2:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t.clone()):
                loss = called(x).square().mean()
        else:
            loss = called(x).square().mean()
        loss.backward()
        found += gradients(model)
    return found


def checkpoints(model: nn.Module, called: Called, device: str) -> list[Tensor]:
    found = []
    for x in batches(device):
        checkpoint(called, x, use_reentrant=False).square().mean().backward()
        found += gradients(model)
        (checkpoint(called, x, use_reentrant=False) + called(x)).square().mean().backward()
        found += gradients(model)
    return found


TRAPS: tuple[Trap, ...] = (
    loop,
    gradients_that_stay,
    two_calls_then_a_backward,
    two_backwards_in_the_other_order,
    many_calls_then_their_backwards,
    a_graph_that_is_retained,
    accumulation,
    calls_without_gradients_between,
    backwards_that_never_come,
    gradients_that_are_kept,
    results_that_are_kept,
    results_that_are_written,
    weights_that_move,
    an_input_with_a_gradient,
    results_without_a_gradient,
    saved_tensors_elsewhere,
    checkpoints,
)


class Block(nn.Module):
    """A small transformer over tokens."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=p, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.embed(tokens)))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


class Convolutions(nn.Module):
    """A small network with batch norms, whose statistics each call writes."""

    def __init__(self) -> None:
        super().__init__()
        # without biases: their gradients are noise before a norm, and AdamW takes whole steps along noise
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[0](self.first(x)))
        x = F.relu(self.norms[1](self.second(x)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def curve(model: nn.Module, called: Called, data: Any, steps: int = 20) -> list[float]:
    """Losses of some steps under AdamW; the seed is that of the step."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-2), []
    for step in range(steps):
        torch.manual_seed(step)
        out = called(data[step % len(data)])
        loss = out if out.dim() == 0 else F.cross_entropy(out, torch.arange(len(out), device=out.device) % 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def compared(trap: Trap, compiled: Callable[[nn.Module], Called], other: Callable[[nn.Module], Called], device: str, **how: float) -> None:
    """Runs the trap with two copies of a model, each called through what is made of it."""
    torch.manual_seed(0)
    ours = mlp().to(device)
    theirs = copy.deepcopy(ours)
    got, wanted = trap(ours, compiled(ours), device), trap(theirs, other(theirs), device)
    assert len(got) == len(wanted) > 0
    for place, (a, b) in enumerate(zip(got, wanted, strict=True)):
        torch.testing.assert_close(a, b, msg=lambda text, place=place: f"value {place}: {text}", **how)
