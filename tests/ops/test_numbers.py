"""What text of generated code also shows, by numbers: types of accumulators, rounding to half types, where extremes start, random draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from precast.lowering.analysis.buffer_bytes import DEVICE_ALIGNMENT
from precast.lowering.passes.memory.workspace_segments import in_parts
from tests.ops.runners import program_of

HALVES = (torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def results(fn: Callable[..., object], folder: Path, *inputs: Tensor) -> object:
    with torch.no_grad():
        return precast.compile(fn, store=str(folder), fullgraph=True)(*inputs)


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_halves_are_kept_in_single_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    """A sum kept in bfloat16 stands still at 256, in float16 at 2,048."""
    x = torch.ones(3, 5000, dtype=dtype)

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        return x.sum(-1), x.sum(), x.mean(-1), x.cumsum(-1)[:, -1], x.sum(0), (x * x).sum(-1)

    whole = torch.tensor([5000.0] * 3).to(dtype)
    expected = (whole, torch.tensor(15000.0).to(dtype), whole / whole, whole, torch.full((5000,), 3.0, dtype=dtype), whole)
    for got, want in zip(results(fn, tmp_path, x), expected, strict=True):  # type: ignore[call-overload]
        assert torch.equal(got, want)


def test_sums_of_integers_are_kept_in_64_bits(tmp_path: Path) -> None:
    for dtype in (torch.int8, torch.uint8, torch.int32):
        x = torch.full((1000,), torch.iinfo(dtype).max, dtype=dtype)
        assert results(lambda x: (x.sum(), x.cumsum(0)[-1]), tmp_path, x) == (1000 * torch.iinfo(dtype).max,) * 2
    flags = torch.ones(700, dtype=torch.bool)
    assert results(lambda x: x.sum(), tmp_path, flags) == 700


def test_long_scans_do_not_drift(tmp_path: Path) -> None:
    """Every prefix is a result: 0.1 added 200,000 times in single precision is off by 40."""
    x = torch.full((200_000,), 0.1)
    got = results(lambda x: x.cumsum(0), tmp_path, x)
    torch.testing.assert_close(got, x.double().cumsum(0).float(), rtol=2e-7, atol=0)


@pytest.mark.parametrize("dtype, digits", [(torch.bfloat16, 8), (torch.float16, 11)])
def test_halves_are_rounded_to_even(dtype: torch.dtype, digits: int, tmp_path: Path) -> None:
    step = 2.0 ** (1 - digits)
    x = torch.tensor([1 + step * k for k in (0.5, 1.5, 2.5, 0.49, 0.51, 1.49, -0.25)] * 9)
    want = torch.tensor([1 + step * k for k in (0, 2, 2, 0, 1, 1, 0)] * 9)
    want[6::7] = torch.tensor(1 - step * 0.25).to(dtype).float()
    got = results(lambda x: (x * 1.0).to(dtype), tmp_path, x)
    assert torch.equal(got, want.to(dtype)) and torch.equal(got, x.to(dtype))  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [1, 7, 64, 1000])
def test_extremes_start_below_and_above_everything(width: int, tmp_path: Path) -> None:
    def fn(*inputs: Tensor) -> list[Tensor]:
        found = []
        for x in inputs:
            found += [x.amax(-1), x.amin(-1), x.max(), x.cummax(-1)[0], x.cummin(-1)[0], x.argmax(-1), x.argmin(-1)]
        return found

    inputs = [torch.full((2, width), value, dtype=t) for t in INTEGERS for value in (torch.iinfo(t).min, torch.iinfo(t).max, -5)]
    inputs += [torch.full((2, width), value, dtype=t) for t in (torch.float32, torch.float64, *HALVES) for value in (-3.0, -1e4, 5.0)]
    inputs += [torch.full((2, width), value) for value in (-float("inf"), float("inf"), torch.finfo(torch.float32).min)]
    for got, want in zip(results(fn, tmp_path, *inputs), fn(*inputs), strict=True):  # type: ignore[call-overload]
        assert torch.equal(got, want)


def test_neighbouring_draws_share_no_numbers(tmp_path: Path) -> None:
    """In one graph, over the sizes of what is drawn, and from call to call: each number is a draw of its own."""

    def fn(x: Tensor) -> tuple[Tensor, ...]:
        drawn = torch.rand(64, 64), torch.rand(4096), torch.rand_like(x), torch.rand(64, 64, dtype=torch.float64)
        return *drawn, torch.nn.functional.dropout(torch.ones(4096), 0.5), torch.nn.functional.dropout(torch.ones(4096), 0.5)

    compiled = precast.compile(fn, store=str(tmp_path), fullgraph=True, options={"fallback_random": False})
    calls = [compiled(torch.ones(64, 64)) for _ in range(3)]
    drawn = [t.flatten().double() for call in calls for t in call[:4]]
    assert all(t.unique().numel() > 4090 for t in drawn)  # of 2^24 fractions few meet by chance
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert torch.isin(a, b).sum() < 12
    masks = [t != 0 for call in calls for t in call[4:]]
    for i, a in enumerate(masks):
        assert all(0.45 < (a == b).float().mean() < 0.55 for b in masks[:i])


def test_the_draws_of_one_number_are_not_those_of_the_next(tmp_path: Path) -> None:
    """A float64 fraction is made of two draws, a normal number too: no half of one is a half of its neighbour."""
    compiled = precast.compile(
        lambda: (torch.rand(4096, dtype=torch.float64), torch.randn(200_000)),
        store=str(tmp_path),
        fullgraph=True,
        options={"fallback_random": False},
    )
    fractions, normals = compiled()
    whole = (fractions * 2.0**53).long()
    high, low = whole >> 27, whole & (1 << 26) - 1  # the upper 26 bits of the first draw, and of the second
    assert (low[:-1] == high[1:]).sum() < 3 and (low == high).sum() < 3  # of 2^26 values few meet by chance
    # of a shared draw the angle of one and the radius of the next: their product is 0.28 on average
    assert (normals[:-1] * normals[1:] ** 2).mean().abs() < 0.03


def test_device_memory_is_aligned_for_every_buffer() -> None:
    """Kernels and libraries rely on 512 bytes, wherever a temporary lies in the workspace."""

    def fn(x: Tensor, w: Tensor) -> Tensor:
        y = torch.softmax(x @ w, -1)
        return (y.cumsum(0) @ w).sort(-1)[0] @ w

    program = program_of(fn, (torch.randn(5, 7), torch.randn(7, 7)), schedule=True, target="cuda:sm_90")[0]
    assert DEVICE_ALIGNMENT == 512
    for planned in (program, in_parts(program, ())):
        assert planned.workspace
        assert all(isinstance(s.offset, int) and s.offset % 512 == 0 and s.nbytes % 512 == 0 for s in planned.workspace)
        assert all(part.offset % 512 == 0 for part in planned.parts)
