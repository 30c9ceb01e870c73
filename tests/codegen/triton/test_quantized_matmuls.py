"""Products with few rows and weights in a narrower type: on a GPU one kernel of ours, on tensor cores, that computes what eager does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from precast.codegen.cuda.tuning import candidates, tiling_name, tiling_of
from precast.codegen.triton.build.images import architecture, compile_cubin
from precast.codegen.triton.render.render import TritonKernel, render
from precast.codegen.triton.render.tiling import Tiling
from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Gemm, Kernel, Program
from tests.codegen.triton.quantized_matmuls import FUNCTIONS, SIZES, Fn, scaled, tensors
from tests.ops.runners import program_of

ROOT = Path(__file__).resolve().parents[3]
BF16, I8 = torch.bfloat16, torch.int8


def program_for(fn: Fn, rows: int, columns: int = 64, depth: int = 256, half: torch.dtype = BF16, narrow: torch.dtype = I8) -> Program:
    program: Program = program_of(fn, tensors(rows, columns, depth, half, narrow), schedule=True, target="cuda:sm_90")[0]
    return program


def launches(program: Program) -> list[TritonKernel]:
    return [launch for step in program.steps if isinstance(step, Kernel) for launch in render(step, program.buffers)]


@pytest.mark.parametrize("every", [pytest.param(3, id="two sizes each"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_they_compute_what_eager_computes(every: int) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.codegen.triton.quantized_matmuls", str(every)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_each_is_one_launch_with_its_cast_and_what_follows(fn: Fn) -> None:
    for size in SIZES:
        (launch,) = launches(program_for(fn, *size))
        assert launch.entry.startswith("product_") and "tl.dot(" in launch.source and launch.tiling.depth


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_floats_of_eight_bits_are_decoded_as_they_are_read(kind: torch.dtype) -> None:
    x, w, s = tensors(16, 2048, 256, BF16, I8)
    program = program_of(scaled, (x, w.to(kind), s), schedule=True, target="cuda:sm_90")[0]
    (launch,) = launches(program)
    assert "tl.dot(" in launch.source and [a.type for a in launch.arguments].count("*u8") == 1
    assert architecture(compile_cubin(launch, "sm_80").image) == "sm_80"  # which has no instruction for them


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_they_compile_for_each_architecture(arch: str) -> None:
    for rows in (4, 20, 64, 128):
        (launch,) = launches(program_for(FUNCTIONS[1], rows, 4096, 4096))
        cubin = compile_cubin(launch, arch)
        assert architecture(cubin.image) == arch and cubin.metadata["shared"] <= 99 << 10


def test_a_gated_pair_reads_its_rows_once() -> None:
    (launch,) = launches(program_for(FUNCTIONS[2], 4, 128))
    assert launch.source.count("def left") == 1 and launch.source.count("= left") == 1 and launch.source.count("tl.dot(") == 2


def test_what_a_library_does_as_well_stays_the_librarys() -> None:
    def wide(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w.to(x.dtype).sin())

    def spread(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return scaled(x[:1].expand_as(x), w, s)

    for program in (
        program_for(spread, 8),
        program_for(scaled, 129, 4096),
        program_for(scaled, 65, 1024),
        program_for(scaled, 4, depth=128),
        program_for(scaled, 8, half=torch.float32),
        program_for(scaled, 4, narrow=torch.int16),
        program_for(wide, 4),
    ):
        assert [type(step) for step in program.steps].count(Gemm) == 1
    (one_row,) = launches(program_for(scaled, 1))
    assert one_row.entry.startswith("reduction_")


def test_tilings_that_are_tuned_are_products_too() -> None:
    program = program_for(scaled, 4)
    (kernel,) = [step for step in program.steps if isinstance(step, Kernel)]
    (launch,) = render(kernel, program.buffers)
    found = [t for t in candidates(launch.tiling, SM_90) if t.depth]
    assert len(found) > 10 and all("tl.dot(" in render(kernel, program.buffers, t)[0].source for t in found)
    assert tiling_of(tiling_name(found[0])) == found[0]


def test_tilings_of_records_without_a_depth_are_read() -> None:
    old = "xblock=4 persistent=4096 rblock=1024 num_warps=8 num_stages=1 unroll=16 hints=1"
    assert tiling_of(old) == Tiling(4, persistent=4096, num_warps=8)
