"""Users' Triton kernels on the device: launched for real, tuned for real, recorded in CUDA graphs, equal to torch's own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from tests.gpu.device import DEVICE, poison
from tests.support.needs import needs

triton = needs("triton")
tl = needs("triton.language")
from tests.end_to_end import kernel_programs as programs  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(DEVICE == "cpu", reason="Triton launches on a GPU only")]


@triton.autotune([triton.Config({"BLOCK": size}, num_warps=warps) for size, warps in ((64, 2), (256, 4), (1024, 8))], key=["n"])
@triton.jit
def tripled_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 3, mask=at < n)


def tripled(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    out = torch.empty_like(y)
    tripled_kernel[programs.grid_of(y.numel())](y, out, y.numel())
    return out.softmax(-1)


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_equal_to_torchs_words(name: str, mode: str, tmp_path: Path) -> None:
    call = precast.compile(programs.PROGRAMS[name][0], store=tmp_path, mode=mode, fullgraph=True)
    for _ in range(4):
        poison(4)
        programs.check(name, call, device=DEVICE)
    if name != "guided":  # at a second size, sizes are symbolic: torch wants constants of its heuristics
        programs.check(name, call, n=46, device=DEVICE)


@pytest.mark.parametrize("name", ("add", "by position", "several", "layouts", "operators", "tuned"))
def test_sizes_of_the_run_time(name: str, tmp_path: Path) -> None:
    call = precast.compile(programs.PROGRAMS[name][0], store=tmp_path, dynamic=True, fullgraph=True)
    for n in (40, 7, 300, 40):
        programs.check(name, call, n=n, device=DEVICE)


@pytest.mark.parametrize("mode", ("default", "reduce-overhead", "max-autotune"))
def test_tuned_for_real(mode: str, tmp_path: Path) -> None:
    """Each configuration is timed by Triton at the first call, not while a CUDA graph records."""
    call = precast.compile(tripled, store=tmp_path, mode=mode, fullgraph=True)
    for rows in (64, 64, 64, 64, 4096, 4096, 4096):
        x = torch.randn(rows, 128, device=DEVICE)
        torch.testing.assert_close(call(x), (x.sin() * 3).softmax(-1))


def test_on_another_stream(tmp_path: Path) -> None:
    call = precast.compile(tripled, store=tmp_path, fullgraph=True)
    stream = torch.cuda.Stream()
    x = torch.randn(512, 128, device=DEVICE)
    want = (x.sin() * 3).softmax(-1)
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(3):
        with torch.cuda.stream(stream):
            got = call(x)
        torch.cuda.current_stream().wait_stream(stream)
        torch.testing.assert_close(got, want)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_on_the_second_device(tmp_path: Path) -> None:
    call = precast.compile(tripled, store=tmp_path, fullgraph=True)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        x = torch.randn(64, 128, device=device)
        torch.testing.assert_close(call(x), (x.sin() * 3).softmax(-1))
