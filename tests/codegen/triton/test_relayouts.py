"""Copies into another layout: in tiles, so that memory is read and written in whole lines, however short the lines of one side are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from precast.codegen.triton.render.render import TritonKernel, render
from precast.codegen.triton.render.tiling import power_of_two
from precast.lowering.ir.nodes import Kernel
from tests.codegen.triton.relayouts import neighbours, planes, weight, weights
from tests.ops.runners import program_of

ROOT = Path(__file__).resolve().parents[3]


def test_they_compute_what_eager_computes() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.codegen.triton.relayouts"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize(
    ("fn", "size", "block"),
    [
        (weight, (1280, 1280, 3, 3), (64, 64)),
        (weight, (320, 320, 3, 3), (32, 64)),  # more programs than multiprocessors
        (weight, (512, 256, 2, 2), (16, 64)),
        (planes, (8, 224, 224, 3), (32, 64)),  # eight images of three colours
    ],
)
def test_a_copy_reads_and_writes_whole_lines(fn: object, size: tuple[int, ...], block: tuple[int, int]) -> None:
    """Tiles along both sides' lines, of which the shorter ones follow one another in the same tile."""
    program, _ = program_of(fn, (torch.empty(size, dtype=torch.half),), schedule=True, target="cuda:sm_90")
    (kernel,) = (s for s in program.steps if isinstance(s, Kernel))
    (launch,) = render(kernel, program.buffers)
    assert (launch.tiling.xblock, launch.tiling.rblock) == block
    assert int(launch.grid) * block[0] * block[1] < 1.4 * torch.Size(size).numel(), "few lanes are idle"


def test_short_lines_of_parts_of_a_launch_are_not_filled_up() -> None:
    """The tile of each part is as wide as its own lines."""
    made = tuple(torch.empty(64 + n, 4, 3, 3) for n in range(3))
    program, _ = program_of(weights, made, schedule=True, target="cuda:sm_90")
    (kernel,) = (s for s in program.steps if isinstance(s, Kernel))
    (launch,) = render(kernel, program.buffers)
    assert launch.tiling.rblock == power_of_two(4)


def test_programs_stay_within_a_plane_where_its_taps_are_the_same_for_all_lanes() -> None:
    """A depthwise convolution's weights are. The four neighbours that an enlarged image is made of lie at positions of each lane's own."""

    def depthwise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(x, w, padding=1, groups=32).relu()

    def enlarged(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")

    image = torch.empty(8, 32, 64, 64)
    (one,) = _launches(depthwise, image, torch.empty(32, 1, 3, 3))
    assert one.tiling.xblock == 1 and int(one.grid) >= 8 * 32, "a program, or several, for each plane"
    (other,) = _launches(enlarged, image)
    assert other.tiling.xblock > 1, "lanes of all planes in a row"


def test_a_short_reduction_in_another_layout_reads_and_writes_whole_lines() -> None:
    """It is written out in a tile along both sides' lines; one whose sides agree, and a longer one, are reductions of rows."""
    image = torch.empty(16, 1024, 20, 64)
    (one,) = _launches(neighbours, image)
    assert one.entry.startswith("pointwise_") and (one.tiling.xblock, one.tiling.rblock) == (32, 64)
    assert one.source.count("tl.load(") == 20
    for fn, size in (
        (lambda x: x.amax(2), (16, 1024, 20, 64)),
        (neighbours, (16, 256, 33, 64)),
        (lambda x: x.amax(-1), (16, 1024, 64, 20)),
    ):
        (other,) = _launches(fn, torch.empty(size))
        assert other.entry.startswith("reduction_")


def _launches(fn: object, *inputs: torch.Tensor) -> tuple[TritonKernel, ...]:
    program, _ = program_of(fn, inputs, schedule=True, target="cuda:sm_90")
    return tuple(launch for step in program.steps if isinstance(step, Kernel) for launch in render(step, program.buffers))
