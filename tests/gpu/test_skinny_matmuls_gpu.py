"""Products of many rows and little depth, on the device: against float64, with poisoned outputs: alone, measured, with rows that vary."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from tests.codegen.triton.skinny_matmuls import CASES, LARGEST, Fn, error, feed_forward, halved
from tests.gpu.device import DEVICE, poison

pytestmark = pytest.mark.gpu


def check(fn: Fn, call: Fn, tensors: tuple[Tensor, ...], half: torch.dtype) -> None:
    """No farther from float64 than eager by more than a half, in eager's layout."""
    inputs = tuple(t.to(DEVICE) for t in halved(tensors, half))
    poison()
    got, eager = call(*inputs), fn(*inputs)
    want = fn(*(t.double() for t in inputs))
    assert (got.shape, got.dtype, got.stride()) == (eager.shape, eager.dtype, eager.stride())
    assert error(got, want) < max(1.5 * error(eager, want), LARGEST[half] / 2)


@pytest.mark.parametrize("half", LARGEST)
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_against_float64(fn: Fn, half: torch.dtype, tmp_path: Path) -> None:
    call = precast.compile(fn, store=tmp_path, fullgraph=True, dynamic=False)
    with torch.inference_mode():
        for _ in range(2):
            check(fn, call, CASES[fn](), half)


def test_measured_tilings(tmp_path: Path) -> None:
    for fn in CASES:
        call = precast.compile(fn, store=tmp_path, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
        with torch.inference_mode():
            check(fn, call, CASES[fn](), torch.bfloat16)


def test_rows_that_vary(tmp_path: Path) -> None:
    call = precast.compile(feed_forward, store=tmp_path, fullgraph=True)
    x, w, b = CASES[feed_forward]()
    with torch.inference_mode():
        for rows in (4100, 5000, 3, 70001):
            x = torch.randn(rows, x.shape[1])
            check(feed_forward, call, (x, w, b), torch.bfloat16)
