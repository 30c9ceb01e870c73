"""The rule that stands for `grid_sample` on a GPU, computed here by torch's operators: beside the CPU's kernel, and what an H200 gave."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import precast
from precast.lowering.build.sampling_rules import grid_sampler_2d
from tests.ops.compiled import compiled
from tests.ops.runners import program_of

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


MODES_OF = {3: ("linear",), 4: ("bilinear", "bicubic"), 5: ("trilinear",)}
SIZES = ((8, 11), (14, 26), (3, 40), (1, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", MODES_OF)
def test_interpolation_dimension_by_dimension(rank: int, dtype: torch.dtype, store: Path) -> None:
    """Up and down by any factors, in either layout, as near float64 as eager is; an infinite pixel is what eager makes of it."""
    image = torch.randn(2, 3, *(5, 7, 13)[5 - rank :]).to(dtype)
    image.flatten()[::50] = float("inf")
    image.flatten()[7::60] = float("nan")
    last = image.to(memory_format=torch.channels_last) if rank == 4 else image.mT
    images = (image, image[..., ::2], last)
    for mode, align, given in product(MODES_OF[rank], (True, False), images):

        def program(x: Tensor, mode: str = mode, align: bool = align) -> list[Tensor]:
            found = [F.interpolate(x, size=(4, *size)[5 - rank :], mode=mode, align_corners=align) for size in SIZES]
            return [*found, F.interpolate(x, scale_factor=1.7, mode=mode, align_corners=align)]

        for got, eager, exact in zip(precast.compile(program, store=store)(given), program(given), program(given.double()), strict=True):
            rtol, atol = (2e-2, 3e-2) if dtype is torch.bfloat16 else (1e-4, 1e-5)
            finite = eager.isfinite() & exact.isfinite()
            torch.testing.assert_close(got[finite], exact[finite].to(dtype), rtol=rtol, atol=atol)
            if dtype is not torch.bfloat16:  # of which eager rounds shares to 0
                torch.testing.assert_close(got, eager, rtol=rtol, atol=atol, equal_nan=True)
            assert got.stride() == eager.stride() or eager.shape[-1] == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_images_of_bytes_are_eagers_to_the_bit(mode: str, dynamic: bool, tmp_path: Path) -> None:
    """Which rounds weights to 16 bits, and what lies between the two dimensions to bytes."""
    smooth = mode in ("bilinear", "bicubic")
    for channels, layout in ((1, torch.contiguous_format), (3, torch.channels_last), (7, torch.contiguous_format)):
        image = torch.randint(0, 256, (2, channels, 13, 17), dtype=torch.uint8).contiguous(memory_format=layout)
        for align, antialias in product((True, False), (True, False)) if smooth else ((None, False),):

            def program(x: Tensor, align: bool | None = align, antialias: bool = antialias) -> list[Tensor]:
                take = partial(F.interpolate, x, mode=mode, align_corners=align, antialias=antialias)
                return [take(size=(20, 31)), take(size=(7, 5)).float() / 255, take(scale_factor=1.7)]

            for got, eager in zip(compiled(program, tmp_path, dynamic=dynamic)(image), program(image), strict=True):
                torch.testing.assert_close(got, eager, rtol=0, atol=0)
                assert got.stride() == eager.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("rank", "mode"), [(3, "linear"), (4, "bilinear"), (5, "trilinear"), (4, "bicubic")])
def test_factors_that_leave_a_size(rank: int, mode: str, dynamic: bool, store: Path) -> None:
    """Of 5 pixels a factor of 1.1 makes 5: a CPU's linear kernels copy then, in that dimension, and what is infinite stays where it is."""

    def program(x: Tensor) -> list[Tensor]:
        found = [F.interpolate(x, scale_factor=factor, mode=mode) for factor in (1.1, (1.5, 1.1, 1.05)[: rank - 2], 2.1)]
        return [*found, F.interpolate(x, size=(*x.shape[2:-1], 9), mode=mode)]

    compiled = precast.compile(program, store=store, dynamic=dynamic)
    for sides in ((5, 4, 5), (11, 5, 12), (4, 9, 3)):
        x = torch.randn(2, 3, *sides[: rank - 2])
        if mode != "bicubic" and not dynamic:
            x.flatten()[5], x.flatten()[-1] = INF, NAN
        for got, eager in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(got, eager, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_nearest_pixels_where_a_factor_leaves_or_doubles_a_size(dynamic: bool, store: Path) -> None:
    """Eager's kernel for images goes by sizes then; that for lines and volumes, and the exact one, by the factor."""

    def program(x: Tensor) -> list[Tensor]:
        twice = [F.interpolate(x, scale_factor=factor) for factor in (1.1, 2.1, (1.1, 2.1), (1.5, 1.1))]
        others = [F.interpolate(x, scale_factor=(1.1, 2.1), mode="nearest-exact"), F.interpolate(x[:, :, 0], scale_factor=1.1)]
        return [*twice, *others, F.interpolate(x[:, None], scale_factor=1.1)]

    compiled = precast.compile(program, store=store, dynamic=dynamic)
    for height, width in ((5, 7), (9, 4), (12, 25)):
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.arange(2.0 * 3 * height * width).reshape(2, 3, height, width).contiguous(memory_format=layout)
            for got, eager in zip(compiled(x), program(x), strict=True):
                torch.testing.assert_close(got, eager, rtol=0, atol=0)
                assert got.stride() == eager.stride()


def test_lines_are_resampled_once() -> None:
    program, _ = program_of(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (torch.randn(2, 4, 32, 32),), schedule=True)
    assert len(program.steps) == 2, "lines first, then columns of them"
    program, _ = program_of(lambda x: F.interpolate(x, size=(4, 64), mode="bilinear"), (torch.randn(2, 4, 32, 32),), schedule=True)
    assert len(program.steps) == 1, "few lines are needed of many"
