"""Products of many rows and little depth: on a GPU one kernel with what stands around them, which computes what eager does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen.triton.build.images import architecture, compile_cubin
from precast.codegen.triton.render.render import TritonKernel, render
from precast.compiling import build_graph
from precast.lowering.ir.nodes import Conv, Gemm, Kernel, Program
from precast.lowering.pipeline import schedule
from tests.codegen.triton.skinny_matmuls import (
    CASES,
    Fn,
    bottleneck,
    feed_forward,
    gated,
    halved,
    image,
    norm,
    norms,
    reduced,
    shortcut,
    weight,
)
from tests.ops.runners import program_of

ROOT = Path(__file__).resolve().parents[3]
HALF = torch.bfloat16


def program_for(fn: Fn, tensors: tuple[Tensor, ...], half: torch.dtype = HALF) -> Program:
    program: Program = program_of(fn, halved(tensors, half), schedule=True, target="cuda:sm_90")[0]
    return program


def products(program: Program) -> list[TritonKernel]:
    launches = (launch for step in program.steps if isinstance(step, Kernel) for launch in render(step, program.buffers))
    return [launch for launch in launches if launch.entry.startswith("product_")]


def test_they_compute_what_eager_computes() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.codegen.triton.skinny_matmuls"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_no_library_call_is_left(fn: Fn) -> None:
    program = program_for(fn, CASES[fn]())
    assert not any(isinstance(step, Gemm | Conv) for step in program.steps)
    assert len(products(program)) == 1


def test_a_norm_before_and_a_residual_behind_are_one_kernel() -> None:
    program = program_for(bottleneck, CASES[bottleneck]())
    written = [s for step in program.steps if isinstance(step, Kernel) for s in step.stores]
    large = [s.buffer for s in written if program.buffer(s.buffer).size[0] == 2]
    assert len(large) == 1, "neither the product nor what makes its rows is written"
    (launch,) = products(program)
    assert launch.source.count("tl.dot(") == 1


def test_both_products_of_a_shortcut_are_one_kernel() -> None:
    (launch,) = products(program_for(shortcut, CASES[shortcut]()))
    assert launch.source.count("tl.dot(") == 2


def test_each_half_of_a_gated_product_is_computed_once() -> None:
    (launch,) = products(program_for(gated, CASES[gated]()))
    assert launch.source.count("tl.dot(") == 2 and launch.source.count("= left") == 1


def deep_shortcut() -> tuple[Tensor, ...]:
    return image(256, 46), weight(128, 256), norms(128), image(256, 46), weight(128, 256), norms(128)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_they_compile_for_each_architecture(arch: str) -> None:
    for fn, made in (
        (reduced, CASES[reduced]),
        (bottleneck, CASES[bottleneck]),
        (feed_forward, CASES[feed_forward]),
        (shortcut, deep_shortcut),
    ):
        (launch,) = products(program_for(fn, made()))
        cubin = compile_cubin(launch, arch)
        assert architecture(cubin.image) == arch and cubin.metadata["shared"] <= 99 << 10


def test_rows_of_the_run_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Program] = []

    def watched(program: Program, *given: Any, **more: Any) -> Program:
        seen.append(schedule(program, *given, **more))
        return seen[-1]

    monkeypatch.setattr(build_graph, "schedule", watched)
    with torch.no_grad():
        signature = (halved(CASES[feed_forward](), HALF), {})
        report = precast.precompile(feed_forward, [signature], targets=["cuda:sm_90"], store=tmp_path, dynamic_shapes={"x": {0: "rows"}})
    assert report.ok, report
    (program,) = seen
    assert program.symbols and len(program.steps) == 1 and len(products(program)) == 1


def twice(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    y = F.conv2d(x, w)
    return torch.cat([norm(y, p), F.max_pool2d(y, 2, stride=1, padding=1)[..., 1:, 1:]])


def row_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b), (w.shape[0],))


def shifted(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return y[1:] * y[:-1]


def across(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return (F.linear(x, w, b) * 2).t().contiguous()


def linear(rows: int, columns: int, depth: int) -> tuple[Tensor, ...]:
    return torch.randn(rows, depth), torch.randn(columns, depth) / 8, torch.randn(columns)


def in_parts(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    parts = F.linear(x, w, b).chunk(4, -1)
    return parts[0].sigmoid() * parts[1].tanh() + parts[2] * parts[3]


def narrowed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x[:, 3:67], w, b))


def many(x: Tensor, *weights: Tensor) -> Tensor:
    total = torch.zeros_like(x)
    for w in weights:
        total = total + F.linear(x, w).sigmoid()
    return total


def test_a_kernel_has_two_products_at_most() -> None:
    program = program_for(many, (torch.randn(4096, 64), *(torch.randn(64, 64) for _ in range(5))))
    assert all(launch.source.count("tl.dot(") <= 2 for launch in products(program))
    assert [isinstance(step, Gemm) for step in program.steps].count(True) >= 1


LEFT: dict[str, tuple[Fn, Callable[[], tuple[Tensor, ...]], torch.dtype]] = {
    "few rows": (feed_forward, lambda: linear(1000, 128, 64), HALF),
    "deep": (feed_forward, lambda: linear(4096, 512, 1024), HALF),
    "narrow": (feed_forward, lambda: linear(4096, 48, 64), HALF),
    "rows that are no whole vectors": (feed_forward, lambda: linear(4096, 128, 70), HALF),
    "four parts of a row": (in_parts, lambda: linear(4096, 512, 256), HALF),
    "rows that begin between vectors": (narrowed, lambda: (torch.randn(4096, 70), *linear(1, 128, 64)[1:]), HALF),
    "float32": (feed_forward, lambda: linear(4096, 128, 64), torch.float32),
    "a 3x3 convolution": (reduced, lambda: (image(64, 46), torch.randn(64, 64, 3, 3), norms(64)), HALF),
    "two readers": (twice, lambda: (image(64, 46), weight(64, 64), norms(64)), HALF),
    "a norm over its rows": (row_norm, lambda: linear(4096, 128, 64), HALF),
    "elements that are read twice": (shifted, lambda: linear(4096, 128, 64), HALF),
    "stored along the rows": (across, lambda: linear(4096, 128, 64), HALF),
}


def group_norm(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """A product of rows that are normalised with the statistics of their groups."""
    rows = (x.unflatten(-1, (16, -1)) - mean[:, None, :, None]) * scale[:, None, :, None]
    return F.linear(rows.flatten(2).to(x.dtype), w, b) + 1


def test_rows_that_need_statistics_of_groups_are_made_by_a_kernel_of_their_own() -> None:
    """Read as the product goes, they would not be neighbours: a tenth of the speed. With statistics of columns they are."""
    made = (torch.randn(2, 4096, 128), *linear(1, 128, 128)[1:], torch.randn(2, 16), torch.rand(2, 16))
    program = program_for(group_norm, made)
    assert len(program.steps) == 2 and len(products(program)) == 1
    program = program_for(bottleneck, (image(128, 64), norms(128), weight(128, 128), norms(128), image(128, 64)))
    assert len(products(program)) == 1 and not any(isinstance(s, Gemm | Conv) for s in program.steps)


@pytest.mark.parametrize("what", LEFT)
def test_what_a_library_does_as_well_stays_the_librarys(what: str) -> None:
    fn, made, half = LEFT[what]
    program = program_for(fn, made(), half)
    assert [isinstance(step, Gemm | Conv) for step in program.steps].count(True) == 1 and not products(program)
