"""Caches that a program writes one row of are written where they lie; whatever still needs the old contents keeps the copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from precast.lowering.ir.nodes import Kernel, Load, Program
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.verify.interpret import run
from tests.ops.trace import trace

CACHE, ROW, PLACE = torch.arange(24.0).reshape(6, 4), torch.full((1, 4), -1.0), torch.tensor([3])


def append(cache: Any, row: Any, place: Any) -> Any:
    cache.index_copy_(0, place, row)
    return cache.sum(0)


def old_contents(cache: Any, row: Any, place: Any) -> Any:
    before = cache * 2
    cache.index_copy_(0, place, row)
    return before.sum(0) + cache.amax(0)


def old_contents_later(cache: Any, row: Any, place: Any) -> Any:
    kept = cache.clone()
    cache.index_copy_(0, place, row)
    return torch.sort(kept, dim=0, stable=True)[0], cache.sum(0)


def twice(cache: Any, row: Any, place: Any) -> Any:
    cache.index_copy_(0, place, row)
    cache.index_copy_(0, place - 1, row * 2)
    return cache.sum(0)


def from_itself(cache: Any, row: Any, place: Any) -> Any:
    cache.index_copy_(0, place, cache[:1] + row)
    return cache.sum(0)


def returned(cache: Any, row: Any, place: Any) -> Any:
    return cache.index_copy_(0, place, row)


def copies(program: Program) -> int:
    """Kernels' stores that move a whole cache."""
    return sum(
        isinstance(store.value, Load) and store.value.index == store.index and program.buffer(store.buffer).size == (6, 4)
        for step in program.steps
        if isinstance(step, Kernel)
        for store in step.stores
    )


@pytest.mark.parametrize("target", ["cpu:native", "cuda:sm_90"])
@pytest.mark.parametrize(
    ("fn", "most"), [(append, 0), (old_contents, 2), (old_contents_later, 3), (twice, 3), (from_itself, 2), (returned, 2)]
)
def test_writes(fn: Callable[..., Any], most: int, target: str) -> None:
    program = schedule(lower(trace(fn, [CACHE.clone(), ROW, PLACE])[0], "test"), target, check=True)
    mine, theirs = CACHE.clone(), CACHE.clone()
    found = run(program, [mine, ROW, PLACE])
    want = fn(theirs, ROW, PLACE)
    for a, b in zip(found, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(mine, theirs)
    assert copies(program) <= most
