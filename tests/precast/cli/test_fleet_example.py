"""examples/fleet.py says truly where answers come from, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.compiling.driver import compile_variant
from precast.runtime.api.compile import site_of
from precast.runtime.programs import single_flight


@pytest.fixture
def fleet() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("fleet_example", Path(__file__).parents[3] / "examples" / "fleet.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logs = [logging.getLogger(f"precast.{topic}") for topic in ("compile", "store")]
    before = [(log, log.level, list(log.handlers)) for log in logs]
    yield module
    for log, level, handlers in before:
        log.setLevel(level)
        log.handlers[:] = handlers


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


def test_it_says_where_answers_come_from(fleet: Any, tmp_path: Path) -> None:
    x = torch.ones(3)
    with torch.no_grad():
        cold = precast.compile(double, store=str(tmp_path / "s"))
        origin = fleet.watched()
        cold(x)
        assert origin.answer == "traced and compiled"
        waiting = fleet.watched()
        compile_variant(site_of(cold).programs[0], (x,), {})  # it finds the artifact once it holds the lease
        assert waiting.answer == "traced, waited and loaded"
        (program,) = site_of(cold).programs
        held = program.store.lease(single_flight.name_of(program, {"x": x}))
        with held:
            precast.reset()
            for path in (tmp_path / "s" / "programs").rglob("*.msgpack"):
                path.rename(tmp_path / path.name)
            threading.Timer(0.2, lambda: [file.rename(path) for file in tmp_path.glob("*.msgpack")]).start()
            waiting = fleet.watched()
            cold(x)
        assert waiting.answer == "waited and loaded"
        precast.reset()
        later = fleet.watched()
        precast.compile(double, store=str(tmp_path / "s"))(x)
        assert later.answer == "loaded"


def test_its_own_store_is_removed(fleet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[str] = []

    def run(store: str, count: int) -> bool:
        stores.append(store)
        (Path(store) / "format").write_text("1\n")
        return True

    monkeypatch.setattr(fleet, "fleet", run)
    monkeypatch.setattr("sys.argv", ["fleet.py"])
    fleet.main()
    assert not Path(*stores).exists()
