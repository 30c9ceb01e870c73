"""The rule that stands for `grid_sample` on a GPU, computed here by torch's operators: beside the CPU's kernel, and what an H200 gave."""

from __future__ import annotations

from itertools import product

import pytest
import torch
import torch.nn.functional as F

from precast.lowering.build.sampling_rules import grid_sampler_2d

MODES, PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
NAN, INF = float("nan"), float("inf")
SPOTS = ((NAN, 0.0), (0.5, INF), (0.5, NAN), (0.5, 0.5), (3e38, 0.0), (-INF, -INF))
ON_H200: dict[tuple[str, str], list[float]] = {
    ("bilinear", "zeros"): [0.0, 0.0, 0.0, 16.75, 0.0, 0.0],
    ("bilinear", "border"): [8.5, 19.25, 4.25, 16.75, 12.5, 1.0],
    ("bilinear", "reflection"): [8.5, 4.25, 4.25, 16.75, 8.5, 1.0],
    ("nearest", "zeros"): [0.0, 0.0, 0.0, 14.0, 0.0, 0.0],
    ("nearest", "border"): [11.0, 19.0, 4.0, 14.0, 15.0, 1.0],
    ("nearest", "reflection"): [11.0, 4.0, 4.0, 14.0, 11.0, 1.0],
    ("bicubic", "zeros"): [NAN, NAN, NAN, 19.810791015625, NAN, NAN],
    ("bicubic", "border"): [NAN, NAN, NAN, 17.30078125, NAN, NAN],
    ("bicubic", "reflection"): [NAN, NAN, NAN, 17.30078125, NAN, NAN],
}
"""`align_corners=False` over the image 1 … 20 of 4 by 5 pixels, at `SPOTS` (torch 2.11)."""


@pytest.mark.parametrize("mode, padding", ON_H200)
def test_coordinates_that_are_no_numbers(mode: str, padding: str) -> None:
    image, grid = torch.arange(1.0, 21.0).reshape(1, 1, 4, 5), torch.tensor([[SPOTS]])
    found = grid_sampler_2d(image, grid, MODES.index(mode), PADDINGS.index(padding), False)
    torch.testing.assert_close(found.flatten(), torch.tensor(ON_H200[mode, padding]), equal_nan=True)


@pytest.mark.parametrize("size", [(1, 1), (4, 5), (1, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_other_coordinates(dtype: torch.dtype, size: tuple[int, int]) -> None:
    image, grid = torch.randn(2, 3, *size, dtype=dtype), torch.randn(2, 6, 7, 2, dtype=dtype) * 2
    for (m, mode), (p, padding), align in product(enumerate(MODES), enumerate(PADDINGS), (True, False)):
        want = F.grid_sample(image, grid, mode=mode, padding_mode=padding, align_corners=align)
        found = grid_sampler_2d(image, grid, m, p, align)
        torch.testing.assert_close(found, want, msg=f"{mode} {padding} {align}", rtol=1e-4, atol=1e-5)
        assert found.stride() == want.stride()


def test_halves_are_sampled_in_single_precision() -> None:
    image, grid = torch.randn(1, 2, 5, 5), torch.rand(1, 4, 4, 2)
    half = grid_sampler_2d(image.half(), grid.half())
    torch.testing.assert_close(half, grid_sampler_2d(image.half().float(), grid.half().float()).half(), rtol=0, atol=0)
