"""Rows of the fault table with real compiled programs: answers are compared with eager's. And what a dead remote costs a warm call."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fault_tools import Cycle, Row

import precast
from tests.support.fault_proxy import FaultProxy
from tests.support.servers import free_port

FAULTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("hang", {}),
    ("status", {"status": 500}),
    ("status", {"status": 403}),
    ("garbage", {}),
    ("half", {}),
    ("flip", {}),
    ("drip", {"rate": 1000}),
    ("lose", {}),
)


def plain(x: torch.Tensor) -> torch.Tensor:
    """One graph."""
    return torch.sin(x) * 2 + x.softmax(0)


def breaks(x: torch.Tensor) -> torch.Tensor:
    """Two pieces."""
    y = x.cos() * 3
    if y.sum() > 0:
        return y.exp()
    return y - 1


PROGRAMS = (plain, breaks)


@cache
def _built() -> FaultProxy:
    """A service that has both programs; it is there until the process ends."""
    proxy = FaultProxy()
    with tempfile.TemporaryDirectory(prefix="precast-faults-") as folder, torch.no_grad():
        for function in PROGRAMS:
            report = precast.precompile(function, [((torch.ones(8),), {})], store=folder, remote=f"{proxy.url}?trust=any")
            assert report.ok
            precast.compile(function, store=folder, remote=f"{proxy.url}?trust=any")(torch.ones(8))
        deadline = time.monotonic() + 60
        while any((Path(folder) / "spool").iterdir()):
            assert time.monotonic() < deadline, "what was built is not sent"
            time.sleep(0.05)
    return proxy


def _answers(cycle: Cycle, store: Path, url: str, require: str) -> int:
    """How many of the programs' answers came from an artifact; all are compared with eager's."""
    served = 0
    with torch.no_grad():
        for function in PROGRAMS:
            x = torch.rand(8, generator=torch.Generator().manual_seed(cycle.chance.randrange(1 << 30)))
            loaded = precast.load(function, store=str(store), require=require, remote=f"{url}?trust=any&budget=250ms")
            got = loaded(x)
            if not torch.allclose(got, function(x), atol=1e-5):
                cycle.tally.fault("wrong", 1, f"{function.__name__} answered {got}")
            served += bool(list((store / "programs").glob("*")))
    return served


def real_programs(cycle: Cycle) -> None:
    """A fresh machine serves both programs while the remote misbehaves, eagerly where it has to, and from artifacts once it is mended."""
    proxy = _built()
    kind, settings = cycle.chance.choice(FAULTS)
    proxy.fault(kind, only=cycle.chance.choice(["", "/ac/", "/cas/"]), times=cycle.chance.choice([None, 1, 2]), **settings)  # type: ignore[arg-type]
    try:
        with cycle.must_not_raise(f"with the fault {kind}"):
            cycle.tally.events[kind] += 1
            _answers(cycle, cycle.folder / "reader", proxy.url, "any")
    finally:
        proxy.heal()
    try:
        cycle.tally.served += _answers(cycle, cycle.folder / "fresh", proxy.url, "hit")
    except precast.GuardMiss as miss:
        cycle.tally.fault("lost", 1, f"after {kind}: {miss}")


def warm_calls(calls: int = 20_000) -> dict[str, dict[str, float]]:
    """Microseconds of a warm call without a remote, with one that is dead, and with one that hangs: batches in turn."""
    with tempfile.TemporaryDirectory(prefix="precast-faults-") as folder, FaultProxy() as hanging, torch.no_grad():
        hanging.fault("hang")
        x = torch.ones(8)
        precast.compile(plain, store=folder, remote=[])(x)
        remotes = {"no remote": "", "remote dead": f"http://127.0.0.1:{free_port()}", "remote hangs": hanging.url}
        served: dict[str, Callable[..., Any]] = {}
        for name, url in remotes.items():
            served[name] = precast.load(plain, store=folder, require="hit", remote=f"{url}?trust=any" if url else [])
            for _ in range(100):
                served[name](x)
        taken: dict[str, list[int]] = {name: [] for name in served}
        for _ in range(calls // 100):
            for name, call in served.items():
                for _ in range(100):
                    begin = time.perf_counter_ns()
                    call(x)
                    taken[name].append(time.perf_counter_ns() - begin)
    return {name: _figures(times) for name, times in taken.items()}


def _figures(times: list[int]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=1000)
    return {"p50": cuts[499] / 1e3, "p99": cuts[989] / 1e3, "p99.9": cuts[998] / 1e3}


ROWS: dict[str, tuple[Row, int]] = {"real programs, remote fails": (real_programs, 40)}
