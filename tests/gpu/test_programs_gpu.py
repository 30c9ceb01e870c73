"""Programs as users write them, on the device: sizes that change, graph breaks, grad modes, autocast, memory that is kept or odd."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from tests.gpu.device import DEVICE, poison
from tests.gpu.test_streams import near, net

pytestmark = pytest.mark.gpu
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product, a softmax over a size that changes, a row reduction."""
    y = (x @ w).softmax(-1)
    return y / (1 + y.amax(0, keepdim=True)) + x.mean(-1, keepdim=True)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode(mode: str, tmp_path: Path) -> None:
    model = net(DEVICE)
    call = precast.compile(model, store=tmp_path, mode=mode)
    for _ in range(6):
        x = rand(32, 64)
        near(call(x), model(x))


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_sizes_that_change(mode: str, tmp_path: Path) -> None:
    """From the empty batch over 1 to sizes that no block divides; one artifact for all but the special ones."""
    call = precast.compile(mixed, store=tmp_path, dynamic=True, mode=mode)
    w = rand(48, 33)
    for rows in (17, 3, 64, 1, 129, 0, 1025, 2, 17):
        x = rand(rows, 48)
        poison(4)
        if rows:
            near(call(x, w), mixed(x, w))
    assert call(x, w).shape == mixed(x, w).shape


def test_size_marked_dynamic(tmp_path: Path) -> None:
    model = net(DEVICE)
    call = precast.compile(model, store=tmp_path)
    for rows in (8, 24, 7, 500):
        x = rand(rows, 64)
        precast.mark_dynamic(x, 0)
        near(call(x), model(x))


def test_memory_that_is_not_aligned(tmp_path: Path) -> None:
    """Views that begin 4 bytes after an aligned address, after the program was compiled for aligned ones and the other way round."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).sum(-1) + x[:, 0]

    for first in (0, 1):
        call = precast.compile(program, store=tmp_path / str(first))
        for offset in (first, 1 - first, 3, 0):
            x = rand(64 * 128 + 8)[offset : offset + 64 * 128].view(64, 128)
            near(call(x), program(x))


def with_breaks(x: torch.Tensor, log: list[float]) -> torch.Tensor:
    y = x.softmax(-1) @ x.mT
    log.append(float(y.sum()))
    y = y * 2 if log[-1] > 1e9 else y + 1
    torch._dynamo.graph_break()
    return y.amax(-1) - x[:, 0]


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_graph_breaks(mode: str, tmp_path: Path) -> None:
    call = precast.compile(with_breaks, store=tmp_path, mode=mode)
    for _ in range(4):
        x = rand(16, 16)
        ours: list[float] = []
        theirs: list[float] = []
        near(call(x, ours), with_breaks(x, theirs))
        assert len(ours) == 1 and abs(ours[0] - theirs[0]) < 1e-2


@pytest.mark.parametrize("mode", MODES)
def test_outputs_may_be_kept(mode: str, tmp_path: Path) -> None:
    """Every answer stays what it was, however many calls follow."""
    model = net(DEVICE)
    call = precast.compile(model, store=tmp_path, mode=mode)
    inputs = [rand(32, 64) for _ in range(8)]
    kept = [call(x) for x in inputs]
    for x, got in zip(inputs, kept, strict=True):
        near(got, model(x))


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_weights_may_change(mode: str, tmp_path: Path) -> None:
    """In place, and by other tensors in their place."""
    model = net(DEVICE)
    call = precast.compile(model, store=tmp_path, mode=mode)
    x = rand(32, 64)
    for step in range(4):
        near(call(x), model(x))
        if step % 2:
            model.first.weight.mul_(0.5)
        else:
            model.second.weight = torch.nn.Parameter(torch.randn_like(model.second.weight), requires_grad=False)


@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
def test_inputs_written_in_place(mode: str, tmp_path: Path) -> None:
    def step(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        state.mul_(0.9).add_(x)
        return state.amax(-1)

    call = precast.compile(step, store=tmp_path, mode=mode)
    ours = rand(8, 32)
    theirs = ours.clone()
    for _ in range(6):
        x = rand(8, 32)
        near(call(ours, x), step(theirs, x))
        near(ours, theirs)


def test_inference_mode_and_autocast(tmp_path: Path) -> None:
    model = net(DEVICE)
    call = precast.compile(model, store=tmp_path)
    x = rand(32, 64)
    with torch.inference_mode():
        near(call(x), model(x))
    with torch.autocast(DEVICE, torch.bfloat16):
        got, want = call(x), model(x)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
    near(call(x), model(x))


LOOK_UP = """
import sys
import torch
import precast

store, device, wrong = sys.argv[1], sys.argv[2], int(sys.argv[3])


def look_up(table, index):
    return table[index] * 2


table, index = torch.randn(100, 16, device=device), torch.randint(-100, 100, (64,), device=device)
index[7] = wrong
with torch.no_grad():
    call = precast.compile(look_up, store=store)
    torch.testing.assert_close(call(table, index.clamp(-100, 99)), look_up(table, index.clamp(-100, 99)))
    print("in range", flush=True)
    print(float(call(table, index).sum().cpu()))
    if device != "cpu":
        torch.cuda.synchronize()
print("no error", flush=True)
"""
"""A device assertion ends a process's context, so a wrong index has a process of its own."""


@pytest.mark.parametrize("index", (100, -101))
def test_an_index_out_of_range_is_an_error_where_it_is_one_in_eager(index: int, tmp_path: Path) -> None:
    (tmp_path / "look_up.py").write_text(LOOK_UP)
    command = [sys.executable, str(tmp_path / "look_up.py"), str(tmp_path / "store"), DEVICE, str(index)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "in range" in done.stdout, done.stdout + done.stderr
    assert done.returncode != 0 and "no error" not in done.stdout
    assert re.search("device-side assert|index out of bounds|out of range|out of bounds", done.stderr), done.stderr


def test_indices_from_both_ends(tmp_path: Path) -> None:
    table, index = rand(100, 16), torch.randint(-100, 100, (64,), device=DEVICE)

    def look_up(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return table[index] * 2

    near(precast.compile(look_up, store=tmp_path)(table, index), look_up(table, index))


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.3, True),
    "rand_like": lambda x: torch.rand_like(x) + x,
    "randn": lambda x: torch.randn(64, 33, device=x.device) * x.mean(),
}


@pytest.mark.skipif(DEVICE == "cpu", reason="the CPU has tests of its own for this")
@pytest.mark.parametrize("mode", ("default", "reduce-overhead"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_random_numbers_are_eagers(name: str, mode: str, tmp_path: Path) -> None:
    """The same seed gives eager's numbers, call after call."""
    program = PROGRAMS[name]
    call = precast.compile(program, store=tmp_path, mode=mode)
    x = rand(64, 33)
    call(x)
    for seed in (1, 2):
        torch.manual_seed(seed)
        wants = [program(x) for _ in range(3)]
        torch.manual_seed(seed)
        for want in wants:
            near(call(x), want)
