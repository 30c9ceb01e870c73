"""`precast profile` on a GPU: its times are those that CUPTI sees, and the slowest kernels that it names are the slowest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.building.build_file import Loaded, ProgramSpec
from precast.profiling.profiler import Profile, StepProfile, profile

pytestmark = pytest.mark.gpu


class Block(torch.nn.Module):
    """Steps that take from a few to hundreds of microseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(1024, 8192), torch.nn.Linear(8192, 1024)
        self.norm = torch.nn.LayerNorm(1024)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.narrow(torch.nn.functional.gelu(self.wide(x)))
        y = self.norm(x + y)
        z = torch.softmax(y.float().cumsum(-1), 0)
        return y + z.to(y.dtype).roll(3, 0)


def loaded(program: Callable[..., Any], *args: Any, train: bool = False) -> Loaded:
    return Loaded(ProgramSpec("app:block", "block", "app", train=train), program, ((args, {}),))


def kernels_us(call: Callable[[], Any], calls: int = 5) -> dict[str, float]:
    """Microseconds a call in which the GPU computes, by kernel, as CUPTI sees them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in found.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] = times.get(event.name, 0.0) + event.time_range.elapsed_us() / calls
    return times


def steps_of(found: Profile) -> list[StepProfile]:
    return [step for graph in found.graphs for step in graph.steps]


def test_times_are_those_of_cupti(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    program, x = Block().cuda().half().eval(), torch.randn(16384, 1024, device="cuda", dtype=torch.half)
    found = profile(loaded(program, x), 1, store, calls=10)
    compiled = precast.compile(program, store=store)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        busy = sum(kernels_us(lambda: compiled(x)).values())
    assert found.in_graphs * 1e6 == pytest.approx(busy, rel=0.15)
    assert all(0 < step.of_peak < 5 for step in steps_of(found))
    assert found.peaks.bytes > 5e11 and found.peaks.operations["f16"] > 1e14, found.peaks


def test_the_slowest_kernels_are_the_slowest(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    program, x = Block().cuda().half().eval(), torch.randn(16384, 1024, device="cuda", dtype=torch.half)
    found = profile(loaded(program, x), 1, store, calls=10)
    compiled = precast.compile(program, store=store)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        seen = kernels_us(lambda: compiled(x))
    mine = {step.record.how: step.seconds * 1e6 for step in steps_of(found) if step.record.kind == "kernel"}
    assert len(mine) >= 4 and set(mine) <= set(seen), (mine, seen)
    by_time = sorted(mine, key=mine.__getitem__)
    assert by_time[-2:] == sorted(mine, key=seen.__getitem__)[-2:], (mine, seen)
    assert all(mine[name] == pytest.approx(seen[name], rel=0.2, abs=4) for name in mine), (mine, seen)


def test_a_training_step(tmp_path: Path) -> None:
    program, x = Block().cuda().train(), torch.randn(2048, 1024, device="cuda")
    found = profile(loaded(program, x, train=True), 1, Store.open(tmp_path), calls=4)
    assert sorted(graph.role for graph in found.graphs) == ["backward", "forward"]
    assert all(step.seconds > 0 for step in steps_of(found))
