"""The GPU benchmark's harness: verdicts from known figures, device work from a known trace, one real run of a tiny row on the CPU."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu_report")


def _row(report: ModuleType, run: str = "r", **sync: float) -> dict[str, Any]:
    return {name: report.Result(sync=[t, t, t], run=run, difference=0.01, cold=t, warm=[2 * t, t]) for name, t in sync.items()}


def _line(text: str, part: str) -> str:
    return next(line for line in text.splitlines() if part in line)


def test_ratio_pairs_the_rounds_of_one_run(report: ModuleType) -> None:
    """A machine that slows down half-way changes both sides of a round, and not their quotient."""
    theirs, ours = report.Result(sync=[2.0, 4.0, 8.0], run="a"), report.Result(sync=[1.0, 2.0, 4.0], run="a")
    assert report.ratio(theirs, ours) == 2.0
    assert report.ratio(report.Result(sync=[8.0], run="b"), ours) == 4.0
    assert report.ratio(report.Result(), ours) is None


def test_best_mode_is_held_against_best_mode(report: ModuleType) -> None:
    row = _row(report, inductor=4.0, inductor_ro=2.0, inductor_max=3.0, precast=3.0, precast_ro=1.25)
    assert _line(report.bars({"bert": row}), "best against best, bert").startswith(
        "- met: best against best, bert: 1.60x (precast_ro over inductor_ro)"
    )
    row["precast_ro"].sync = [1.5] * 3
    assert _line(report.bars({"bert": row}), "best against best, bert").startswith("- NOT met")


def test_a_rival_that_was_not_measured_is_named(report: ModuleType) -> None:
    row = _row(report, inductor=4.0, inductor_ro=2.0, precast_ro=1.0)
    assert "not measured: inductor_max" in _line(report.bars({"bert": row}), "best against best, bert")


def test_a_slower_default_row_is_seen_beside_a_fine_mean(report: ModuleType) -> None:
    rows = {"bert": _row(report, inductor=10.0, precast=1.0), "vit": _row(report, inductor=1.0, precast=1.1)}
    text = report.bars(rows)
    assert _line(text, "geomean").startswith("- met") and _line(text, "slowest row").startswith("- NOT met")


def test_errors_are_held_against_eagers(report: ModuleType) -> None:
    row = _row(report, eager=1.0, precast=1.0)
    assert _line(report.bars({"bert": row}), "error against").startswith("- met")
    row["precast"].difference = 0.0101
    assert _line(report.bars({"bert": row}), "error against").startswith("- NOT met")


def test_cold_and_warm_take_the_worst_row_and_the_best_process(report: ModuleType) -> None:
    rows = {"bert": _row(report, inductor=10.0, precast=1.0), "vit": _row(report, inductor=10.0, precast=5.0)}
    text = report.bars(rows)
    assert "worst 0.500" in _line(text, "cold compile") and _line(text, "cold compile").startswith("- NOT met")
    assert "worst 0.500" in _line(text, "warm first call")


def test_nothing_measured_is_nothing_met(report: ModuleType) -> None:
    assert "- met" not in report.bars({"bert": {"eager": report.Result()}})


def test_device_work_counts_overlap_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    measure = importlib.import_module("gpu_measure")
    events = [{"name": "a", "ts": 0, "dur": 10}, {"name": "b", "ts": 5, "dur": 10}, {"name": "a", "ts": 25, "dur": 5}]
    found = measure._device_work(events, calls=1)
    assert found["kernels"] == 3 and found["busy"] == pytest.approx(20e-6)
    assert found["top"][0][:2] == ("a", 2.0)


def test_nan_is_an_infinite_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    torch = importlib.import_module("torch")
    measure = importlib.import_module("gpu_measure")
    assert measure.distance(torch.tensor([float("nan"), 1.0]), torch.ones(2))[0] == float("inf")


def test_separate_runs_combine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: ModuleType) -> None:
    gpu = importlib.import_module("gpu")
    steady, fresh = report.Result(sync=[1.0], run="a"), report.Result(cold=3.0)
    for name, result in (("a.json", steady), ("b.json", fresh)):
        (tmp_path / name).write_text(json.dumps({"rows": {"bert": {"precast": asdict(result)}}, "facts": {}, "peaks": {}}))
    both = gpu.results(gpu.combine([tmp_path / "a.json", tmp_path / "b.json"]))["bert"]["precast"]
    assert both.sync == [1.0] and both.cold == 3.0


def test_a_tiny_row_runs_end_to_end(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "gpu.py"), "--device", "cpu", "--rows", "tiny", "--contenders", "eager", "--rounds", "3"]
    done = subprocess.run([*command, "--json", str(figures)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(figures.read_text())["rows"]["tiny"]["eager"]
    assert len(row["sync"]) == 3 and min(row["sync"]) > 0 and row["difference"] < 1e-5
    assert "not measured" in done.stdout


def test_an_unknown_contender_is_refused_by_name() -> None:
    command = [sys.executable, str(FOLDER / "gpu.py"), "--device", "cpu", "--rows", "tiny", "--contenders", "precastt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "unknown contender 'precastt'" in done.stderr
