"""Windows that slide along a row, and borders apart from the inside: values are eager's, and the loops have the form that vectorises."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.codegen.cpp.kernel import render_kernel
from precast.lowering.ir.nodes import Kernel
from tests.codegen.programs import Loaded
from tests.ops.runners import program_of

Fn = Callable[[Tensor], tuple[Tensor, ...]]
CL = torch.channels_last


def two_dimensions(x: Tensor) -> tuple[Tensor, ...]:
    return (
        F.max_pool2d(x, 3, 2, 1),
        F.max_pool2d(x.sin(), 3, 1, 1).relu() * 2,
        F.max_pool2d(x, (2, 5), (1, 2), (1, 2), ceil_mode=True),
        F.max_pool2d(x, 3, 2, 1, 2),
        F.max_pool2d(x, 2, 2, 0, 2),
        F.max_pool2d(x, 13, 1, 6),
        F.max_pool2d(x, 2, 5),
        F.avg_pool2d(x, 3, 2, 1),
        F.avg_pool2d(x, (4, 3), 1, 1, count_include_pad=False),
        F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + x.mean(),
        F.avg_pool2d(x, 2, divisor_override=3),
        torch.cat([F.avg_pool2d(x, 3, 1, 1), x], 1) * 2,
        F.lp_pool2d(x, 2.0, (3, 2)),
    )


def laid_out(x: Tensor) -> tuple[Tensor, ...]:
    last = x.contiguous(memory_format=CL)
    return F.max_pool2d(last, 3, 2, 1), F.avg_pool2d(last, 3, 1, 1), F.max_pool2d(x.transpose(2, 3), 3, 2, 1), F.avg_pool2d(x[..., ::2], 3)


def other_ranks(x: Tensor) -> tuple[Tensor, ...]:
    row, box = x.flatten(1, 2), x.unflatten(1, (2, -1))
    pools = (F.max_pool1d(row, 4, 2, 1), F.avg_pool1d(row, 3), F.max_pool3d(box, (2, 3, 3), 1, 1), F.avg_pool3d(box, 2, (1, 2, 1)))
    return (*pools, F.adaptive_avg_pool2d(x, 5), F.adaptive_avg_pool2d(x, (5, 17)), F.adaptive_max_pool2d(x, 4))


def borders(x: Tensor) -> tuple[Tensor, ...]:
    padded = (
        F.pad(x, (3, 2, 1, 4)),
        F.pad(x, (-1, 5), value=2.0),
        F.pad(x, (3, 3, 2, 2), "reflect") * 2,
        F.pad(x, (2, 7, 1, 1), "replicate"),
    )
    joined = torch.cat([x, x.sin()], 3) * 2, torch.cat([x[..., :3], x], 3).relu()
    return (*padded, *joined, F.pad(x, (2, 2, 2, 2), "circular"), F.max_pool2d(x, 3, 2, 1, return_indices=True)[1], x.tril(3) + 1)


@pytest.mark.parametrize("fn", [two_dimensions, laid_out, other_ranks, borders], ids=lambda fn: fn.__name__)
def test_as_eager(fn: Fn, tmp_path: Path) -> None:
    """Odd sizes; numbers that are none, too; and in half precision, whose sums are made in float32."""
    compiled = precast.compile(fn, store=tmp_path)
    x = torch.randn(2, 4, 35, 37)
    special = torch.where(torch.rand(x.shape) < 0.01, float("nan"), torch.where(torch.rand(x.shape) < 0.02, float("-inf"), x))
    for given, rtol in ((x, 1e-5), (special, 1e-5)) if fn is not two_dimensions else ((x, 1e-5), (special, 1e-5), (x.bfloat16(), 2e-2)):
        found, exact = compiled(given), fn(given.double())
        for number, (got, want) in enumerate(zip(found, exact, strict=True)):
            if given.dtype is torch.bfloat16 and number == 1:
                continue  # eager rounds the sine
            torch.testing.assert_close(got, want.to(got.dtype), rtol=rtol, atol=rtol, equal_nan=True)


def source(fn: Callable[..., Tensor], *inputs: Tensor) -> str:
    program, _ = program_of(fn, inputs, schedule=True)
    (kernel,) = (s for s in program.steps if isinstance(s, Kernel))
    return render_kernel(kernel, {b.name: b for b in program.buffers}).source


def test_columns_come_before_windows() -> None:
    text = source(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(8, 16, 40, 40))
    inside = text.split("#pragma omp simd")[1:]
    assert len(inside) == 2 and "row1[" in text
    assert inside[0].count("p1[") == 3 and inside[1].count("= row1[") == 3
    assert "?" not in inside[0].split("n")[0], "a mask is left inside of the image"


def test_a_reflection_reads_consecutive_memory_inside() -> None:
    text = source(lambda x: F.pad(x, (3, 3, 3, 3), "reflect"), torch.randn(8, 16, 40, 40))
    assert text.count("#pragma omp simd") == 1
    inside = text.split("#pragma omp simd")[1].split("for")[1]
    assert "x2 = 3; x2 < 43" in inside and "+ x2 +" in inside


def moved(x: Tensor) -> tuple[Tensor, ...]:
    """Windows whose borders depend on where in the window a point lies."""
    shifted = torch.stack([F.pad(x, (k, 4 - k)) for k in range(5)])
    return (
        F.unfold(x, 3, padding=1),
        F.unfold(x, (2, 5), dilation=(1, 3), padding=(0, 6), stride=(2, 1)),
        F.unfold(x, 3, padding=2, stride=2) * 2,
        F.unfold(x, (1, 35), padding=(0, 34)),
        F.pad(x, (40, 3)).unfold(3, 38, 1).relu(),
        shifted,
    )


@pytest.mark.parametrize("dynamic", [False, True])
def test_borders_that_outer_axes_decide(dynamic: bool, tmp_path: Path) -> None:
    compiled = precast.compile(moved, store=tmp_path, dynamic=dynamic)
    for shape in ((2, 4, 35, 37), (1, 2, 9, 40), (3, 1, 5, 6)):
        x = torch.randn(shape)
        x[0, 0, 0, :3] = torch.tensor([float("nan"), float("-inf"), -0.0])
        for got, want in zip(compiled(x), moved(x), strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_inside_of_moved_windows_there_is_no_mask() -> None:
    """Of small windows between numbers, of large ones between borders that each of their columns has."""
    text = source(lambda x: F.unfold(x, 3, padding=1), torch.randn(4, 32, 56, 56))
    (inside,) = re.findall(r"x4 = 1; x4 < 55[^{]*\{([^}]*)\}", text)
    assert "?" not in inside
    text = source(lambda x: F.unfold(x, 31, padding=15), torch.randn(2, 4, 40, 40))
    (inside,) = re.findall(r"= low\d+; x\d+ < high\d+[^{]*\{([^}]*)\}", text)
    assert "?" not in inside


def channels_last_of_rows(x: Tensor) -> tuple[Tensor, ...]:
    last = x.contiguous(memory_format=CL)
    return (
        F.max_pool2d(last, 3, 2, 1),
        F.max_pool2d(last, 2).relu() * 2,
        F.avg_pool2d(last, 3, 1, 1, count_include_pad=False),
        F.max_pool2d(last, (2, 5), (1, 2), (1, 2), ceil_mode=True),
        -F.max_pool2d(-last, 3, 1, 1),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_planes_become_lines_of_channels(dtype: torch.dtype, store: Path) -> None:
    compiled = precast.compile(channels_last_of_rows, store=store, dynamic=False)
    for size in ((2, 64, 28, 28), (1, 17, 33, 19), (3, 8, 12, 40), (1, 5, 20, 20), (2, 50, 9, 75)):
        x = torch.randn(size).to(dtype)
        x[0, 1, 3, 4:7], x[-1, -1, 0, 0] = float("nan"), float("nan")
        x[0, 0, 5:8, 5:8] = -float("inf")
        for got, want in zip(compiled(x), channels_last_of_rows(x), strict=True):
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("target", ["cpu:x86-64-v3", "cpu:native"])
def test_blocks_of_rows_are_turned(target: str) -> None:
    for channels in (64, 41):
        x = torch.randn(2, channels, 30, 37)
        x[0, 2, 3, 4] = x[1, 40, 29, 36] = float("nan")
        program, rebuild = program_of(lambda x: channels_last_of_rows(x)[0], (x,), schedule=True, target=target)
        compiled = compile_program(program, target, CodegenOptions(measure=False))
        assert "tile_to_lines_4(" in compiled.kernel_source and "ask_for_row(" in compiled.kernel_source
        torch.testing.assert_close(rebuild(Loaded(compiled.library)(x)), channels_last_of_rows(x)[0], equal_nan=True)


@pytest.mark.parametrize("points", [2, 3, 4, 5, 8, 9, 16, 31])
def test_a_nan_among_few_is_found_wherever_it_is(points: int, store: Path) -> None:
    x = torch.randn(points + 1, points, 40)
    for place in range(points):
        x[place, place] = float("nan")
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        y = x.to(dtype)
        for got in precast.compile(lambda x: (x.amax(1), x.amin(1), x.transpose(1, 2).contiguous().amax(-1)), store=store)(y):
            assert got[:points].isnan().all() and not got[points].isnan().any()
