"""Graph breaks: each program of break_programs.py cold, and warm in a fresh process without the tracer, against eager and torch.compile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.end_to_end.graph_breaks.break_programs import CASES

WORKER = Path(__file__).parent / "break_worker.py"
Reports = dict[str, dict[str, Any]]


def work(store: Path, kind: str) -> Reports:
    """One report per case, all from one child process."""
    command = [sys.executable, str(WORKER), str(store), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0 and reports, done.stderr[-3000:]
    return {report["name"]: report for report in reports}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("breaks")


@pytest.fixture(scope="module")
def cold(store: Path) -> Reports:
    return work(store, "cold")


@pytest.fixture(scope="module")
def warm(store: Path, cold: Reports) -> Reports:
    return work(store, "warm")


@pytest.fixture(scope="module")
def torch_reports(store: Path) -> Reports:
    return work(store, "torch")


@pytest.mark.parametrize("name", CASES)
def test_cold_equals_eager(name: str, cold: Reports) -> None:
    assert "failed" not in cold[name], cold[name]["failed"]


@pytest.mark.parametrize("name", CASES)
def test_warm_equals_eager_without_the_tracer(name: str, cold: Reports, warm: Reports) -> None:
    assert "failed" not in warm[name], warm[name]["failed"]
    assert warm[name]["attempts"] == []
    assert warm[name]["graphs"] == 0, "a warm process compiles nothing"
    assert warm[name]["ran"] == cold[name]["ran"], "what was compiled runs compiled"
    assert bool(warm[name]["ran"]) == (cold[name]["graphs"] > 0)


@pytest.mark.parametrize("name", CASES)
def test_as_many_graphs_as_torch_compile(name: str, cold: Reports, torch_reports: Reports) -> None:
    wanted = torch_reports[name].get("graphs") if CASES[name].graphs is None else CASES[name].graphs
    found = cold[name].get("graphs")
    if torch.__version__.startswith("2.11.") and getattr(CASES[name].make(), "__closure__", None):
        assert wanted >= found > 0, "what follows a break in a function with free variables runs as plain Python"
    else:
        assert found == wanted
