"""Long rows: in one pass, in chunks, and both, with the same results as eager in float64."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from precast.codegen.triton.build.images import compile_cubin
from precast.codegen.triton.render.render import TritonKernel, render
from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Kernel, Load, Program, Reduce, walk
from precast.lowering.passes.gpu.split_reductions import gpu_reductions
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.codegen.triton.row_statistics import CASES, IN_CHUNKS, failure
from tests.ops.runners import program_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", list(CASES))
def test_chunks_by_the_oracle(name: str) -> None:
    def checked(program: Program, inputs: list[torch.Tensor]) -> list[object]:
        return list(run(verify(program), inputs))

    assert failure(name, IN_CHUNKS, checked) == ""


@pytest.mark.parametrize("every", [pytest.param(6, id="a sixth"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_kernels_in_the_interpreter(every: int) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.codegen.triton.row_statistics", str(every)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def kernels(fn: object, *inputs: torch.Tensor) -> list[tuple[Kernel, tuple[TritonKernel, ...]]]:
    program: Program = program_of(fn, inputs, schedule=True, target="cuda:sm_90")[0]  # type: ignore[arg-type]
    return [(s, render(s, program.buffers)) for s in program.steps if isinstance(s, Kernel)]


def loads(source: str, pointer: str = "ptr0") -> int:
    return len(re.findall(rf"tl\.load\({pointer} ", source))


def empty(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(size, dtype=dtype)


def test_few_long_rows_are_read_twice() -> None:
    """Once for both statistics, by many programs; once to be normalised, by as many as there are blocks."""
    first, second = kernels(lambda a: F.layer_norm(a, a.shape[1:]), empty(16, 64, 256, 256))
    (statistics,), (normalised,) = first[1], second[1]
    assert len(first[0].stores) == 2 and loads(statistics.source) == 1
    assert 256 <= int(statistics.grid) <= 2048 and int(normalised.grid) == 16 * 64 * 256 * 256 // 4096


def test_a_maximum_and_its_exponentials_are_one_pass() -> None:
    (first, *_) = kernels(
        lambda a, y: F.cross_entropy(a.float(), y), empty(8192, 50257, dtype=torch.bfloat16), torch.zeros(8192, dtype=torch.int64)
    )
    (statistics,) = first[1]
    assert statistics.source.count("for ") == 2  # the blocks that are aligned, and both ends
    assert statistics.source.count("tl.multiple_of(") == 1 and int(statistics.grid) == 8192


def test_rows_that_fit_registers_are_read_once() -> None:
    for fn, inputs in (
        (lambda a: a.softmax(-1), (empty(4096, 20000),)),
        (lambda a: F.group_norm(a, 32), (empty(64, 256, 64, 64),)),
        (lambda a: F.instance_norm(a), (empty(64, 64, 128, 128),)),
    ):
        ((_, (only,)),) = kernels(fn, *inputs)
        assert "for " not in only.source and loads(only.source) == 1


def test_neighbours_keep_one_kernel() -> None:
    """Rows that keep the memory busy by themselves, and short ones, are not cut."""
    for rows, columns in ((4096, 4096), (1056, 50000), (64, 1024), (1, 4096), (3, 100)):
        assert len(kernels(lambda a: a.var(-1), empty(rows, columns))) == 1
    for rows, columns in ((1, 1 << 20), (8, 1 << 18), (100, 1 << 17)):
        assert len(kernels(lambda a: a.var(-1), empty(rows, columns))) == 2


def test_what_is_normalised_in_columns_runs_in_the_order_of_memory() -> None:
    *_, (last, (launch,)) = kernels(
        lambda a: F.batch_norm(a, None, None, training=True), empty(128, 64, 56, 56).to(memory_format=torch.channels_last)
    )
    assert not any(isinstance(v, Reduce) for s in last.stores for v in walk(s.value))
    assert launch.entry.startswith("pointwise_")


@pytest.mark.parametrize("channels", [128, 512])
def test_groups_of_a_channels_last_image_are_read_in_whole_lines(channels: int) -> None:
    """Statistics in one pass over single channels, which lie side by side, and many programs; also behind a convolution."""

    def program(a: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.conv2d(F.silu(F.group_norm(torch.conv2d(a, w, padding=1), 32)), v)

    made = kernels(program, *(empty(*n, dtype=torch.half) for n in ((1, 64, 256, 256), (channels, 64, 3, 3), (8, channels, 1, 1))))
    (statistics, (launch,)) = next(
        (k, launches) for k, launches in made if any(isinstance(v, Reduce) for s in k.stores for v in walk(s.value))
    )
    assert len(statistics.stores) == 2 and loads(launch.source) == 1
    assert launch.tiling.xblock * 2 >= 128 and int(launch.grid) >= 256


def test_what_is_normalised_and_kept_is_written_in_the_order_of_memory() -> None:
    """A residual block's sum, which the next block needs as it is: no kernel writes it row by row beside statistics, and what normalises it
    writes it, too, rather than a kernel of its own that reads the images once more.
    """

    def program(a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first = a + torch.conv2d(a, w, b, padding=1)
        return first + torch.conv2d(F.silu(F.group_norm(first, 32)), w, b, padding=1)

    made = kernels(
        program, empty(1, 256, 128, 128, dtype=torch.half), empty(256, 256, 3, 3, dtype=torch.half), empty(256, dtype=torch.half)
    )
    images = [[s for s in k.stores if math.prod(int(a.extent) for a in s.axes or k.axes) == 256 * 128 * 128] for k, _ in made]
    assert not any(isinstance(v, Reduce) for stores in images for s in stores for v in walk(s.value))
    assert [len(stores) for stores in images] == [1, 0, 0, 2, 1]  # moved, chunks, statistics, kept and normalised, the last sum


@pytest.mark.parametrize("rank", [2, 3])
def test_windows_side_by_side_are_no_short_runs(rank: int) -> None:
    """Windows that do not overlap look like groups of a channels-last image; but one program holds all that share a line of memory."""
    pools = {2: (F.max_pool2d, F.adaptive_avg_pool2d), 3: (F.avg_pool3d, F.adaptive_max_pool3d)}[rank]
    for pool, size in zip(pools, (2, 14), strict=True):
        assert len(kernels(lambda a, pool=pool, size=size: pool(a, size), empty(64, 64, *[56] * rank))) == 1


def test_registers_hold_the_rows_that_are_kept() -> None:
    """Two rows of 32,768 do not fit beside each other; rows that nothing is reduced of are no rows, but blocks."""
    pair = kernels(lambda a, b: torch.softmax(a * b, -1) * b, empty(4096, 32768), empty(4096, 32768))
    assert pair[-1][1][0].tiling.persistent < 32768
    assert kernels(lambda a: F.group_norm(a, 32), empty(64, 256, 64, 64))[-1][1][0].tiling.persistent == 32768

    def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * (b * b).sum(-1, keepdim=True)

    (*_, (_, (launch,))) = kernels(scaled, empty(2048, 32768), empty(2048, 8))
    assert launch.tiling.rblock <= 4096 and int(launch.grid) >= 2048


def test_few_rows_of_many_columns_fill_the_threads() -> None:
    """A sum over 32 gathered rows of 128 takes all of the columns together, and two dozen elements a thread."""
    ((_, (launch,)),) = kernels(lambda t, i: t[i].sum(1), empty(100_000, 128), torch.zeros(65536, 32, dtype=torch.int64))
    assert launch.tiling.xblock == 128 and launch.tiling.xblock * launch.tiling.rblock >= 16 * 32 * launch.tiling.num_warps


def test_what_is_compared_with_its_own_maximum_is_summed_once() -> None:
    """Sums in two orders differ in their last bits: none would equal the largest, and its gradient is divided by how many do."""

    def largest(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = F.adaptive_avg_pool2d(a, 2)
        return pooled.amax((2, 3)), pooled.amax((2, 3), keepdim=True) == pooled

    made = kernels(largest, empty(2, 3, 9, 9))
    assert sum(isinstance(v, Load) and v.buffer == "in0" for k, _ in made for s in k.stores for v in walk(s.value)) == 1


def test_cuts_follow_the_device() -> None:
    program = program_of(lambda a: a.sum(-1), (empty(400, 1 << 16),), schedule=True, target="cuda:sm_90")[0]
    assert gpu_reductions(program, SM_90).steps == program.steps
    assert len(gpu_reductions(program, replace(SM_90, bytes_in_flight=64 << 20, processors=1024)).steps) == len(program.steps) + 1


@pytest.mark.parametrize("arch", ["sm_90", pytest.param("sm_80", marks=pytest.mark.slow), pytest.param("sm_100", marks=pytest.mark.slow)])
def test_images(arch: str) -> None:
    """Odd rows are read sixteen bytes at a time: their kernels compile."""
    made = kernels(lambda a: a.softmax(-1), empty(1056, 50257, dtype=torch.bfloat16)) + kernels(lambda a: a.max(-1), empty(4, 1 << 20))
    for launch in (launch for _, launches in made for launch in launches):
        assert compile_cubin(launch, arch).image
