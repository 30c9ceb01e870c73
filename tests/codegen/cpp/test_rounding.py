"""Roundings to half types without a store, and bounds that are constants: each special value as eager has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_roundings_of_all_kinds_of_floats(dtype: torch.dtype, store: Path) -> None:
    """Every half value, what lies half-way between neighbours and beside that, and every exponent of f32."""
    halves = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype).float()
    bits = halves.view(torch.int32)
    half = 1 << (15 if dtype is torch.bfloat16 else 12)
    near = [halves, *((bits + d).view(torch.float32) for d in (1, -1, half - 1, half, half + 1))]
    exponents = torch.arange(-(1 << 31), 1 << 31, (1 << 19) + 77, dtype=torch.int64).to(torch.int32).view(torch.float32)
    x = torch.cat(
        [*near, exponents, torch.tensor([0.0, -0.0, 65519.0, 65520.0, -65521.0, 2.0**-24, 2.0**-25, 2.0**-25 * 1.01, -(2.0**-26)])]
    )

    def rounded(x: Tensor) -> Tensor:
        return x.to(dtype).float() * 1

    found, wanted = precast.compile(rounded, store=store)(x), rounded(x)
    assert torch.equal(found.isnan(), wanted.isnan())
    found, wanted = found[~found.isnan()], wanted[~wanted.isnan()]
    assert torch.equal(found, wanted) and torch.equal(found.signbit(), wanted.signbit())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_bounds(dtype: torch.dtype, store: Path) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([0.0, -0.0, 1.0, -1.0, 6.5, inf, -inf, nan, *torch.linspace(-9, 9, 60).tolist()], dtype=dtype)

    def bounded(x: Tensor) -> tuple[Tensor, ...]:
        return x.relu(), x.clamp(-1, 6), x.clamp(max=2.5), x.clamp(min=inf), torch.nn.functional.hardtanh(x), x.clamp(nan)

    for found, wanted in zip(precast.compile(bounded, store=store)(x), bounded(x), strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit() & (found == found), wanted.signbit() & (wanted == wanted))
