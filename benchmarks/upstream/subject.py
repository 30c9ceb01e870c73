"""The programs that are no models, each with what may change under it. A case runs a copy of this file, so that its text may be edited."""

from __future__ import annotations

from collections.abc import Callable

import torch
from program import Program
from torch import Tensor, nn

FACTOR = 2.0  # a global that the programs read
PRINTED: list[str] = []  # what a program wrote outside of its answer


def scaled(x: Tensor) -> Tensor:
    """A helper that is traced into; a case edits its text."""
    return x * FACTOR


class Block(nn.Module):
    """Two linear layers with what models hold besides: an activation, a norm, a buffer, a plain attribute, a helper that reads a global."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.activation: nn.Module = nn.GELU()
        self.norm = nn.BatchNorm1d(32)
        self.outer = nn.Linear(32, 8)
        self.gain = 1.5
        self.shift: Tensor
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        """One answer of eight numbers for each row of x."""
        return scaled(self.outer(self.norm(self.activation(self.inner(x))))) * self.gain + self.shift


class Counter(nn.Module):
    """A module that writes to its buffers at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Tensor
        self.mean: Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        """x less the mean of all that came before."""
        self.calls.add_(1)
        self.mean.lerp_(x.mean(0), 0.5)
        return (x - self.mean) * self.calls


def broken(x: Tensor) -> Tensor:
    """A function with a graph break: something outside of torch is told of a value in the middle."""
    y = torch.relu(x) * 2
    _tell(y)
    return y.cos() + FACTOR


@torch.compiler.disable
def _tell(y: Tensor) -> None:
    PRINTED.append(f"{float(y.sum()):.3f}")


def branching(x: Tensor) -> Tensor:
    """Which of two ways the data decides."""
    if x.sum() > 0:
        return x * 3
    return x.abs() - 5


def closure(scale: float = 3.0, shift: float = 1.0) -> Callable[[Tensor], Tensor]:
    """A function over values of the scope that made it: one number and one tensor."""
    weight = torch.full((16,), shift)

    def scaled_by(x: Tensor) -> Tensor:
        return torch.sin(x) * scale + weight

    return scaled_by


def powered(x: Tensor, exponent: int = 2) -> Tensor:
    """A function with an argument that is a number."""
    return (x * exponent).relu() + exponent


def added(x: Tensor, y: Tensor) -> Tensor:
    """A function that writes to its first argument: the same tensor may come twice."""
    x.mul_(2)
    return x + y


def seeded(*shape: int, seed: int = 1) -> Tensor:
    """The same random numbers in every process."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _block() -> nn.Module:
    torch.manual_seed(0)
    block = Block().eval()
    block.norm.running_mean.copy_(torch.linspace(-1, 1, 32))  # type: ignore[union-attr]
    return block


PROGRAMS: dict[str, Callable[[], Program]] = {
    "block": lambda: Program(_block(), (seeded(4, 16),)),
    "dynamic": lambda: Program(_block(), (seeded(4, 16),), dynamic=True),
    "buffer": lambda: Program(Counter(), (seeded(4, 16),)),
    "break": lambda: Program(broken, (seeded(4, 16),)),
    "branch": lambda: Program(branching, (seeded(4, 16).abs(),)),
    "closure": lambda: Program(closure(), (seeded(4, 16),)),
    "number": lambda: Program(powered, (seeded(4, 16), 2)),
    "alias": lambda: Program(added, (seeded(4, 16), seeded(4, 16, seed=2))),
}
