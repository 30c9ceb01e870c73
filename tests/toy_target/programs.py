"""Runs programs for `toy:interpreter` and compares them with eager; run as a file: STORE HOW NAME…, HOW is "compile" or "load"."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(next(path for path in Path(__file__).parents if (path / "pyproject.toml").is_file())))

import torch

import precast
import tests.toy_target.row  # noqa: F401  (registers the family)
from tests.toy_target.interpret_operator import calls

TARGET = "toy:interpreter"
Call = Callable[[], tuple[Any, ...]]


class Block(torch.nn.Module):
    """A linear layer, a normalisation and a GELU, which count their calls in a buffer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(32, 32), torch.nn.LayerNorm(32)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return torch.nn.functional.gelu(self.norm(self.linear(x)))


def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Results that share memory, one that is a library's own, one of integers."""
    y = x * 2 + 1
    return y, y[1:], y.t(), torch.sort(x, dim=1).values, (x > 0).sum(0)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def branching(x: torch.Tensor) -> torch.Tensor:
    """A branch on a value, which the interpreter's host program has no form for."""
    return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))


PROGRAMS: dict[str, tuple[Any, list[Call]]] = {
    "block": (Block().eval(), [lambda: (torch.randn(4, 32),)] * 3),
    "several": (several, [lambda: (torch.randn(6, 5),)] * 2),
    "attention": (attention, [lambda: tuple(torch.randn(2, 3, 8, 4) for _ in range(3))] * 2),
    "sizes": (lambda x: torch.softmax(x, -1) + x.shape[0], [lambda n=n: (torch.randn(n, 7),) for n in (3, 5, 9)]),
    "branching": (branching, [lambda: (torch.randn(50),)] * 2),
}


def answered(store: str, name: str, how: str) -> int:
    """How many of the program's calls the interpreter computed; each answer is eager's."""
    model, inputs = PROGRAMS[name]
    ready = precast.load if how == "load" else precast.compile
    compiled = ready(model, store=store, options={"target": TARGET})
    calls.clear()
    with torch.no_grad():
        for make in inputs:
            given = make()
            torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-5)
    if name == "block":
        assert model.seen.tolist() == [2 * len(inputs)] * 3, model.seen
    return len(calls)


def main(store: str, how: str, *names: str) -> None:
    for name in names:
        print(name, answered(store, name, how))
    print("tracer" if "torch._dynamo" in sys.modules else "warm")


if __name__ == "__main__":
    main(*sys.argv[1:])
