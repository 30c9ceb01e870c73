"""Sizes and numbers that depend on data: read at run time, checked, and used by what follows; against eager at several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.ops.symbolic import Dims, agree, runs

r = torch.randn
Inputs = list[torch.Tensor]


def n(*values: int) -> torch.Tensor:
    return torch.tensor(values[0] if len(values) == 1 else list(values))


@dataclass(frozen=True)
class Case:
    fn: Callable[..., Any]
    inputs: Sequence[Inputs]
    """The first are the traced ones."""
    dynamic: Sequence[Dims] | None = None
    fails: Sequence[tuple[Inputs, type[Exception], str]] = ()


def counted(x: Any, count: Any) -> Any:
    k = count.item()
    torch._check(k >= 2)
    torch._check(k <= 4)
    return x[:k]


def positions(count: Any) -> Any:
    k = count.item()
    torch._check_is_size(k)
    return torch.arange(k) * 2


def several(x: Any) -> Any:
    found = torch.nonzero(x[:, 0] > 0)
    return found.sum(0), x[found[:, 0]] * 3, found.shape[0] * x


CASES: dict[str, Case] = {
    "nonzero": Case(lambda x: torch.nonzero(x > 0) * 2, [[r(5, 7)], [r(3, 4)], [-torch.ones(2, 2)]]),
    "boolean mask": Case(lambda x: (x + 1)[x > 0].exp(), [[r(5, 7)], [r(3, 4)]]),
    "masked_select reduced": Case(
        lambda x, y: (torch.masked_select(x, x > 0) * 2).sum() + y, [[r(5, 7), r(3)], [r(3, 4), r(3)], [-torch.ones(2, 2), r(3)]]
    ),
    "item": Case(lambda x, k: x * k.item(), [[r(5), n(3)], [r(4), n(-7)]]),
    "float item": Case(lambda x, k: x * k.item() + k.item(), [[r(5), torch.tensor(3.5)], [r(4), torch.tensor(-7.25)]]),
    "unique": Case(lambda x: torch.unique(x) + 1, [[torch.randint(0, 4, (9,))], [torch.randint(0, 4, (3,))]]),
    "arange": Case(positions, [[n(5)], [n(0)], [n(1)]], None, [([n(-3)], RuntimeError, "Invalid value range for -3")]),
    "check": Case(
        counted, [[r(5), n(3)], [r(7), n(4)]], None, [([r(5), n(1)], RuntimeError, r"between \[2, 4\]"), ([r(9), n(9)], RuntimeError, "9")]
    ),
    "select": Case(
        lambda x, k: x.select(0, k.item()) * 2,
        [[r(5, 3), n(3)], [r(7, 3), n(-1)]],
        None,
        [([r(5, 3), n(7)], IndexError, "index 7 is out of bounds for dimension 0 with size 5")],
    ),
    "slice": Case(lambda x, k: x[k.item() :] * 2, [[r(5, 3), n(3)], [r(7, 3), n(-1)]]),
    "narrow": Case(
        lambda x, k: torch.narrow(x, 0, k, 2) * 2,
        [[r(5, 3), n(3)], [r(7, 3), n(1)]],
        None,
        [([r(5, 3), n(4)], RuntimeError, "exceeds the size")],
    ),
    "repeat_interleave": Case(lambda x, k: torch.repeat_interleave(x, k, dim=0) * 2, [[r(3, 5), n(1, 0, 2)], [r(4, 5), n(1, 1, 2, 0)]]),
    "argwhere": Case(lambda x: torch.argwhere(x > 0).float().mean(0), [[r(5, 7)], [r(3, 4)]]),
    "two joined": Case(lambda x: torch.cat([torch.nonzero(x > 0), torch.nonzero(x < 0)]), [[r(5, 7)], [r(3, 4)]]),
    "product of some rows": Case(
        lambda x, w: x[x[:, 0] > 0] @ w, [[r(9, 7), r(7, 4)], [r(30, 7), r(7, 4)], [-torch.ones(3, 7), r(7, 4)]], [[0], []]
    ),
    "product over the rows found": Case(
        lambda x: torch.relu(x[x[:, 0] > 0].t() @ x[x[:, 0] > 0] + torch.ones(7)), [[r(9, 7)], [-torch.ones(3, 7)], [r(30, 7)]], [[0]]
    ),
    "several uses": Case(several, [[r(9, 7)], [r(30, 7)]], [[0]]),
    "split by data": Case(lambda x, k: torch.cat([t * 2 for t in x.split(k.tolist())]), [[r(9, 7), n(4, 5)], [r(9, 7), n(2, 7)]], [[], []]),
}


@pytest.mark.parametrize("name", CASES)
def test_sizes_that_depend_on_data(name: str) -> None:
    case = CASES[name]
    for backend, run in runs(case.fn, case.inputs[0], case.dynamic).items():
        try:
            for inputs in case.inputs:
                agree(case.fn(*inputs), run(*inputs))
        except Exception as error:
            error.add_note(f"{name}, {backend}")
            raise
        for inputs, kind, message in case.fails:
            with pytest.raises(kind, match=message):
                run(*inputs)
