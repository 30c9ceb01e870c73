"""Products with weights in a narrower type, on the device: against float64, with poisoned outputs, alone and measured."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import precast
from tests.codegen.triton.quantized_matmuls import FUNCTIONS, SIZES, Fn, scaled, tensors
from tests.gpu.device import DEVICE, poison

pytestmark = pytest.mark.gpu


def check(fn: Fn, size: tuple[int, int, int], half: torch.dtype, narrow: torch.dtype, store: Path, mode: str = "default") -> None:
    """Two fresh inputs: no farther from float64 than eager by more than a half."""
    call = precast.compile(fn, store=str(store), fullgraph=True, dynamic=False, mode=mode, recompile_limit=100)
    for _ in range(2):
        inputs = tuple(t.to(DEVICE) for t in tensors(*size, half, narrow))
        poison()
        got, eager = call(*inputs), fn(*inputs)
        want = fn(inputs[0].double(), inputs[1], inputs[2].double())
        for a, e, b in zip(*(of if isinstance(of, tuple) else (of,) for of in (got, eager, want)), strict=True):
            assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride())
            ours, theirs = (((r.double() - b).abs().max() / b.abs().max()).item() for r in (a, e))
            assert ours < max(1.5 * theirs, 2 ** (-8 if half is torch.bfloat16 else -11)), (size, ours, theirs)


@pytest.mark.parametrize("half, narrow", [(torch.bfloat16, torch.int8), (torch.float16, torch.uint8)])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_against_float64(fn: Fn, half: torch.dtype, narrow: torch.dtype, tmp_path: Path) -> None:
    with torch.inference_mode():
        for size in (*SIZES, (2, 4096, 4096), (32, 11008, 512), (100, 4096, 1024)):
            check(fn, size, half, narrow, tmp_path)


def test_measured_tilings(tmp_path: Path) -> None:
    with torch.inference_mode():
        for rows in (4, 64):
            check(scaled, (rows, 4096, 4096), torch.bfloat16, torch.int8, tmp_path, "max-autotune-no-cudagraphs")
