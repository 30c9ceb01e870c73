"""Pooling windows that are larger than the image: what lies outside is not visited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import precast
from precast.lowering.ir.nodes import Kernel, Reduce, walk
from tests.ops.runners import program_of

CASES: list[tuple[tuple[int, ...], Any, dict[str, Any]]] = [
    ((2, 3, 7, 7), 1280, {"ceil_mode": True}),
    ((2, 3, 7, 5), (9, 3), {"stride": (2, 1), "padding": (4, 1)}),
    ((1, 2, 1, 1), 4, {"padding": 2}),
    ((2, 3, 7, 7), 8, {"padding": 4, "count_include_pad": False}),
    ((2, 3, 6, 7), (10, 9), {"padding": (5, 4), "stride": 1}),
    ((2, 3, 4, 4), 9, {"ceil_mode": True, "stride": 3, "padding": 4}),
    ((2, 3, 7, 7), (1280, 2), {"ceil_mode": True, "stride": (1280, 2)}),
]


@pytest.mark.parametrize("size, kernel, options", CASES, ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_windows_larger_than_the_image(
    size: tuple[int, ...], kernel: Any, options: dict[str, Any], layout: torch.memory_format, store: Path
) -> None:
    own = {k: v for k, v in options.items() if k != "count_include_pad"}
    x = torch.randn(size).to(memory_format=layout)
    x[0, 0, 0, 0] = float("inf")

    def pools(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.avg_pool2d(x, kernel, **options), F.max_pool2d(x, kernel, **own), *F.max_pool2d(x, kernel, return_indices=True, **own)

    found = precast.compile(pools, store=store, dynamic=False)(x)
    for mine, theirs in zip(found, pools(x), strict=True):
        torch.testing.assert_close(mine, theirs, equal_nan=True)


def test_no_point_outside_is_visited() -> None:
    program, _ = program_of(lambda x: F.avg_pool2d(F.silu(x), 1280, ceil_mode=True), (torch.randn(2, 16, 7, 7),), schedule=True)
    reductions = [v for k in program.steps if isinstance(k, Kernel) for s in k.stores for v in walk(s.value) if isinstance(v, Reduce)]
    assert reductions and all(int(a.extent) <= 49 for r in reductions for a in r.axes)
