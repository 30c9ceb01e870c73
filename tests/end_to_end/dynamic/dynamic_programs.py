"""Programs of sizes that vary, with the calls that are made of them one after the other. Run by test_dynamic.py and dynamic_worker.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def scale(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 2 + 1)


def shift(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + x.size(0)


def pair(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.size(0) * x.size(1), -1).sum(-1)


Calls = list[tuple[Any, ...]]
SEQUENCES: dict[str, tuple[Callable[..., Any], Callable[[], Calls]]] = {
    "one length": (scale, lambda: [(torch.randn(n, 4),) for n in (3, 3, 3)]),
    "many lengths": (scale, lambda: [(torch.randn(n, 4),) for n in (3, 4, 5, 9, 33)]),
    "two dims, one after the other": (scale, lambda: [(torch.randn(*s),) for s in ((3, 4), (5, 4), (5, 6), (7, 8), (9, 9))]),
    "down to one and none": (scale, lambda: [(torch.randn(n, 4),) for n in (5, 6, 7, 1, 1, 0, 8)]),
    "from one": (scale, lambda: [(torch.randn(n, 4),) for n in (1, 2, 3, 1, 5)]),
    "numbers": (shift, lambda: [(torch.randn(4, 4), n) for n in (3, 5, 7, 9)]),
    "numbers down to one": (shift, lambda: [(torch.randn(4, 4), n) for n in (3, 5, 1, 0, 9)]),
    "numbers and lengths": (shift, lambda: [(torch.randn(n, 4), n) for n in (3, 5, 7, 2)]),
    "equal sizes": (pair, lambda: [(torch.randn(n, n), torch.randn(n, n)) for n in (3, 4, 5, 6)]),
    "sizes that come apart": (pair, lambda: [(torch.randn(a, b), torch.randn(b, a)) for a, b in ((3, 3), (4, 4), (5, 6), (7, 9))]),
    "another rank": (scale, lambda: [(torch.randn(3, 4),), (torch.randn(3, 4, 5),), (torch.randn(3, 4, 7),), (torch.randn(6, 8),)]),
    "server": (rows, lambda: [(torch.randn(b, t, 4),) for b, t in ((2, 8), (2, 8), (3, 17), (8, 5), (4, 64), (2, 9))]),
}
