"""The benchmark harness: verdicts from known figures, and one real run of a tiny row."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The report module; benchmarks/ is no package, so its folder goes on sys.path as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("report")


def _row(report: ModuleType, **steady: float) -> dict[str, Any]:
    return {
        name: report.Result(blocks=[t] * 3, quiet=[True] * 3, steady=[t] * 9, cold=t, warm=[t], warm_peak=int(t))
        for name, t in steady.items()
    }


def test_steady_prefers_quiet_blocks(report: ModuleType) -> None:
    result = report.Result(blocks=[1.0, 9.0, 1.2, 1.1, 9.0], quiet=[True, False, True, True, False])
    assert report.steady(result) == 1.1
    few = report.Result(blocks=[1.0, 9.0, 9.0], quiet=[True, False, False])
    assert report.steady(few) == 9.0, "fewer than three quiet blocks: all count"


STAT = """cpu  600 0 60 9000 5 3 2 1 0 0
cpu0 100 10 20 4000 5 1 2 3 0 0
cpu1 500 0 40 5000 0 2 0 0 0 0
intr 12345
"""


def test_only_the_cpus_of_the_run_count_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    busy = importlib.import_module("rounds").busy_seconds
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy(STAT, {0}) == pytest.approx(136 * tick), "user, nice, system, irq, softirq, steal; neither idle nor waiting"
    assert busy(STAT, {1}) == pytest.approx(542 * tick)
    assert busy(STAT, {0, 1}) == pytest.approx(678 * tick)
    with pytest.raises(RuntimeError, match=r"CPUs \[5\]"):
        busy(STAT, {1, 5})


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--warm", "-1"], ["--block", "0"], ["--block", "nan"]])
def test_amounts_that_measure_nothing_are_refused(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "run.py"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and arguments[0] in done.stderr


def test_the_best_rival_of_each_row_counts(report: ModuleType) -> None:
    row = _row(report, eager=3.0, inductor=2.0, freezing=1.5, precast=1.0, precast_freeze=0.5)
    assert report.best_rival(row) == ("freezing", 1.5)


@pytest.mark.parametrize(
    ("ours", "bar", "met"), [(1.0, 1.5, True), (1.0, 1.6, False), (2.0, 1.1, False)], ids=["just met", "just missed", "slower"]
)
def test_steady_bar(report: ModuleType, ours: float, bar: float, met: bool) -> None:
    text = report.bars({"bert": _row(report, inductor=1.5, precast=ours)}, bar)
    line = next(line for line in text.splitlines() if "steady, precast against" in line)
    assert line.startswith("- met" if met else "- NOT met")


def test_a_slower_row_is_named_even_when_the_geomean_is_fine(report: ModuleType) -> None:
    rows = {"bert": _row(report, inductor=10.0, precast=1.0), "vit": _row(report, inductor=1.0, precast=1.1)}
    text = report.bars(rows, 1.5)
    assert "- met: steady, precast against" in text
    assert "- NOT met: no row slower (precast)" in text


def test_cold_and_warm_bars_take_the_worst_row(report: ModuleType) -> None:
    rows = {"bert": _row(report, inductor=10.0, precast=1.0), "vit": _row(report, inductor=10.0, precast=5.0)}
    lines = report.bars(rows, 1.5).splitlines()
    assert any(line.startswith("- NOT met: cold compile") and "vit" in line for line in lines)
    assert any(line.startswith("- NOT met: warm first call over") and "0.500 (vit)" in line for line in lines)


def test_figures_from_a_disturbed_machine_are_marked(report: ModuleType) -> None:
    row = _row(report, inductor=1.5, precast=1.0)
    assert "CAUTION" not in report.bars({"bert": row}, 1.5)
    row["precast"].quiet = [True, False, False]
    assert "CAUTION: other processes disturbed bert" in report.bars({"bert": row}, 1.5)


def test_without_torch_compile_no_steady_bar_is_judged(report: ModuleType) -> None:
    assert "not measured: steady" in report.bars({"bert": _row(report, eager=9.0, precast=1.0)}, 1.5)


def test_what_was_not_measured_is_not_met_silently(report: ModuleType) -> None:
    text = report.bars({"bert": _row(report, inductor=1.0)}, 1.5)
    assert "met: " not in text.replace("not measured: ", "")


def test_engines_of_exported_models_are_held_against_freeze_alone(report: ModuleType) -> None:
    row = _row(report, inductor=2.0, openvino=1.0, onnxruntime=0.9, precast=1.5, precast_freeze=0.8)
    assert report.best_rival(row) == ("inductor", 2.0)
    text = report.bars({"bert": row}, 1.1)
    assert "- met: steady, precast_freeze against the faster of OpenVINO and ONNX Runtime: geomean 1.12x, bar 1.05x (bert 1.12)" in text
    row["openvino"].blocks = row["openvino"].steady = [0.7] * 3
    assert "- NOT met: no row slower than OpenVINO and ONNX Runtime (precast_freeze)" in report.bars({"bert": row}, 1.1)


def test_a_contender_that_is_not_installed_is_said_and_no_failure(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, contenders = (importlib.import_module(name) for name in ("rounds", "contenders"))
    absent = dataclasses.replace(contenders.CONTENDERS["openvino"], needs=("no_such_package",))
    monkeypatch.setitem(contenders.CONTENDERS, "openvino", absent)
    monkeypatch.setattr(rounds, "Process", lambda *arguments: pytest.fail("an absent contender was started"))
    monkeypatch.setattr(rounds, "steady_rounds", lambda processes, results, plan: None)
    monkeypatch.setattr(rounds, "_errors", lambda *arguments: None)
    results = rounds.measure("tiny", ["openvino"], rounds.Plan(1))
    assert results["openvino"].error is None
    table = report.row_table("tiny", results)
    assert "| OpenVINO | no_such_package not installed: pip install 'precast[rivals]' |" in table
    assert "OpenVINO" not in report.bars({"tiny": results}, 1.1)


def test_a_neighbour_keeps_a_cpu_busy_and_is_no_noise(report: ModuleType) -> None:
    rounds = importlib.import_module("rounds")

    class Worker:
        def ask(self, do: str, calls: int) -> dict[str, Any]:
            time.sleep(0.2)
            return {"times": [0.1] * calls, "cpu": 0.0, "peak": 0}

    cpus = os.sched_getaffinity(0)
    with rounds.busy_neighbours(1) as (pid,):
        time.sleep(0.2)
        assert os.sched_getaffinity(pid) == {min(cpus)}
        begun, busy = rounds._cpu_seconds([pid]), rounds._busy(cpus)
        time.sleep(0.5)
        spent = rounds._cpu_seconds([pid]) - begun
        assert 0.05 < spent <= rounds._busy(cpus) - busy + 0.05
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    result = rounds.Result()
    rounds.steady_rounds({"one": Worker()}, {"one": result}, rounds.Plan(1, rounds=1, noise=10.0, neighbours=1))
    assert result.blocks == [0.1]


def test_the_engines_get_float32_and_our_threads(report: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    exported = importlib.import_module("exported_contenders")
    asked: dict[str, Any] = {}

    class Core:
        def set_property(self, settings: dict[str, str]) -> None:
            asked["cache"] = settings["CACHE_DIR"]

        def compile_model(self, stored: Path, device: str, settings: dict[str, Any]) -> Any:
            asked.update(settings)
            return lambda arguments, **flags: [arguments["x"] * 2]

    class Session:
        def __init__(self, stored: str, options: Any, providers: list[str]) -> None:
            asked.update(threads=options.intra_op_num_threads, providers=providers)

        def run(self, wanted: None, arguments: dict[str, Any]) -> list[Any]:
            return [arguments["x"] * 3]

    (tmp_path / "model.xml").touch()
    (tmp_path / "model.onnx").touch()
    monkeypatch.setitem(sys.modules, "openvino", SimpleNamespace(Core=Core))
    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=Session))
    model, inputs = torch.nn.Identity(), {"x": torch.ones(3)}
    assert torch.equal(exported.openvino(model, inputs, tmp_path)(**inputs)[0], inputs["x"] * 2)
    assert torch.equal(exported.onnxruntime(model, inputs, tmp_path)(**inputs)[0], inputs["x"] * 3)
    assert asked["INFERENCE_PRECISION_HINT"] == "f32" and asked["cache"] == str(tmp_path / "blobs")
    assert asked["INFERENCE_NUM_THREADS"] == asked["threads"] == torch.get_num_threads()
    assert asked["providers"] == ["CPUExecutionProvider"]


@pytest.mark.slow
def test_a_tiny_row_runs_end_to_end(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--rows", "tiny", "--contenders", "eager", "--quick", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(figures.read_text())["rows"]["tiny"]["eager"]
    assert row["max_error"] < 1e-4 and row["error"] is None
    assert len(row["blocks"]) >= 3 and min(row["blocks"]) > 0
    assert "not measured" in done.stdout, "without precast no bar may be called met"


def test_an_unknown_row_is_refused_by_name() -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "run.py"), "--rows", "bertt"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "unknown row 'bertt'" in done.stderr
