"""The simulated farm: against farms whose time can be told by hand."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("farm_simulation")


@pytest.mark.parametrize(
    ("costs", "jobs", "workers", "seconds", "busy"),
    [
        ({}, 100, 10, 10.0, 1.0),  # nothing but compiles of a second
        ({}, 101, 10, 11.0, 101 / 110),
        ({"start": 5.0}, 100, 10, 15.0, 100 / 150),
        ({"way": 0.5}, 100, 10, 15.0, 100 / 150),
        ({"client": 1.0}, 100, 1000, 101.0, 100 / 101_000),  # one client deals one job a second
        ({"size": 100.0, "bandwidth": 100.0}, 100, 1000, 101.0, 100 / 101_000),  # the tier takes one a second
    ],
)
def test_by_hand(simulation: ModuleType, costs: dict[str, float], jobs: int, workers: int, seconds: float, busy: float) -> None:
    given = {"compiles": (1.0,), "client": 0.0, "way": 0.0, "size": 0.0, "bandwidth": 1.0, "start": 0.0, **costs}
    result = simulation.simulate(simulation.Costs(**given), jobs, workers, random.Random(1))
    assert result.seconds == pytest.approx(seconds) and result.busy == pytest.approx(busy)


def test_the_same_seed_gives_the_same(simulation: ModuleType) -> None:
    costs = simulation.Costs((0.1, 0.2, 5.0), 0.001, 0.01, 1e4, 1e8, 10.0)
    assert simulation.simulate(costs, 500, 30, random.Random(1)) == simulation.simulate(costs, 500, 30, random.Random(1))
