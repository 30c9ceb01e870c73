"""CUDA graphs of calls that record gradients, without a GPU: programs for the CPU, whose launches a played device captures and replays."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import precast
from precast.artifact_store import Store
from precast.runtime.cuda_graphs import call as cuda_call
from precast.runtime.cuda_graphs.graphs import WARM_UPS, CudaGraphs
from precast.runtime.loading import open as opening
from precast.runtime.native import loader
from tests.runtime.fake_cuda import FakeDevice
from tests.training.gradient_programs import PROGRAMS, Program
from tests.training.graph_traps import (
    TRAPS,
    Block,
    Called,
    Convolutions,
    Trap,
    compared,
    curve,
    loop,
    many_calls_then_their_backwards,
    two_calls_then_a_backward,
)
from tests.training.test_gradients import outcome


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def player() -> str:
    return "native"


@pytest.fixture
def device(player: str, monkeypatch: pytest.MonkeyPatch, native_store: Store) -> FakeDevice:
    """The CPU as a device that captures and replays; calls go through the native runtime, or are replayed without it."""
    if player == "python":
        monkeypatch.setattr(loader, "loaded", lambda: None)
    played = FakeDevice(loader.loaded())
    family_of = opening.family_of
    monkeypatch.setattr(opening, "family_of", lambda target: replace(family_of(target), cuda_graphs=True))
    monkeypatch.setattr(cuda_call, "device_of", played.of)
    return played


@pytest.fixture
def compiled(store: Path) -> Callable[[nn.Module], Called]:
    return lambda model: precast.compile(model, mode="reduce-overhead", store=store, dynamic=False)


@pytest.fixture
def made() -> Callable[[], list[CudaGraphs]]:
    """What the test made: forward and backward graphs."""
    before = {id(item) for item in gc.get_objects() if type(item) is CudaGraphs}
    return lambda: [item for item in gc.get_objects() if type(item) is CudaGraphs and id(item) not in before]


def replayed(made: list[CudaGraphs]) -> None:
    """Both halves were captured and replayed."""
    assert {graphs.name.rpartition(" ")[2] for graphs in made} >= {"(forward)", "(backward)"}
    assert all(graphs.player.plays > 0 and not graphs.refused for graphs in made)


IN_CI = (loop, two_calls_then_a_backward, many_calls_then_their_backwards)
"""Traps that run without the native runtime, too, in CI; the others as slow tests."""


@pytest.mark.parametrize(
    ("trap", "player"),
    [
        *[pytest.param(trap, "native", id=trap.__name__) for trap in TRAPS],
        *[
            pytest.param(trap, "python", id=f"{trap.__name__} without the native runtime", marks=() if trap in IN_CI else pytest.mark.slow)
            for trap in TRAPS
        ],
    ],
)
def test_as_eager(trap: Trap, device: FakeDevice, compiled: Any, made: Callable[[], list[CudaGraphs]]) -> None:
    compared(trap, compiled, lambda model: model, "cpu")
    replayed(made())


@pytest.mark.parametrize(
    ("model", "data"),
    [
        pytest.param("Block", "tokens", marks=pytest.mark.slow),
        pytest.param("Block with dropout", "tokens", marks=pytest.mark.slow),
        ("Convolutions", "images"),
    ],
)
def test_losses_of_a_loop(model: str, data: str, device: FakeDevice, compiled: Any, made: Callable[[], list[CudaGraphs]]) -> None:
    """Dropout draws eager's numbers; statistics of batch norms are written; the loss lives on until the next step."""
    torch.manual_seed(0)
    eager = Convolutions() if model == "Convolutions" else Block(0.1 if "dropout" in model else 0.0)
    batch = [torch.randn(6, 3, 8, 8) if data == "images" else torch.randint(0, 50, (2, 8)) for _ in range(3)]
    ours = copy.deepcopy(eager)
    got, wanted = curve(ours, compiled(ours), batch, 10), curve(eager, eager, batch, 10)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    for a, b in zip(ours.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    replayed(made())
    for graphs in made():
        count = sum(len(size.recordings) for size in graphs._sizes.values())
        assert count == 1 and graphs.player.plays == 10 - WARM_UPS, "what is kept has memory once, though the loss lives on"


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_program_as_launched(program: Program, device: FakeDevice, store: Path) -> None:
    """The programs of the table, several times: what a replay gives is what the same artifact gives when it is launched."""
    torch.manual_seed(5)
    launched = program.make()
    replayed = copy.deepcopy(launched) if isinstance(launched, nn.Module) else launched
    calls = [
        precast.compile(fn, mode=mode, fullgraph=program.whole, store=store)
        for fn, mode in ((launched, "default"), (replayed, "reduce-overhead"))
    ]
    for step in range(6):
        wanted, got = (outcome(fn, program, step, False) for fn in calls)
        assert got.pop("seen") == wanted.pop("seen")
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
