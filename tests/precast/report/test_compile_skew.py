"""A compile that keeps other ranks waiting: it says so before their collectives time out, and not where there is no time-out near."""

from __future__ import annotations

import datetime
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import precast

pytestmark = pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[[float], None]]:
    def make(seconds: float) -> None:
        where = f"file://{tmp_path}/meeting"
        dist.init_process_group("gloo", init_method=where, rank=0, world_size=1, timeout=datetime.timedelta(seconds=seconds))

    try:
        yield make
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize(("seconds", "due"), [(0.4, True), (600.0, False), (None, False)])
def test_a_warning_where_a_time_out_is_near(
    seconds: float | None, due: bool, group: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    if seconds is not None:
        group(seconds)

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        time.sleep(0.5)
        return gm.forward

    with caplog.at_level(logging.WARNING, "precast.compile"):
        assert torch.equal(precast.compile(double, backend=backend)(torch.ones(2)), torch.full((2,), 2.0))
    said = [record.getMessage() for record in caplog.records]
    assert bool(said) is due, said
    if due:
        assert "double has been compiling for 0.2 s on this rank" in said[0] and "time out after 0.4 s" in said[0]


RANK = """
import datetime, sys, time
rank, folder, seconds, delay = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
import torch, torch.distributed as dist, precast
from precast.compiling import driver
real = driver._compile_with
def slowly(*args):
    time.sleep(delay)
    return real(*args)
driver._compile_with = slowly
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=seconds)
)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
net = torch.nn.parallel.DistributedDataParallel(precast.compile(model, store=f"{folder}/store") if rank else model)
net(torch.ones(2, 4)).sum().backward()
print("came through", flush=True)
import os
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "delay", "through"), [(60.0, 32.0, True), (8.0, 20.0, False)])
def test_a_rank_that_compiles_while_the_other_waits(seconds: float, delay: float, through: bool, tmp_path: Path) -> None:
    """The first rank runs eagerly. The slow one says what is near; past the time-out it is torch's error that the other one raises."""
    root = Path(__file__).parents[3]
    env = {**os.environ, "PYTHONPATH": str(root), "PRECAST_STRICT": "0"}
    commands = [[sys.executable, "-c", RANK, str(rank), str(tmp_path), str(seconds), str(delay)] for rank in range(2)]
    ranks = [subprocess.Popen(c, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    try:
        (out, error), (_, slow) = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert f"has been compiling for {seconds / 2:.3g} s on this rank" in slow
    assert ("came through" in out) is through, error[-2000:]
    assert through or "imed out" in error
    assert "has been compiling" not in error
