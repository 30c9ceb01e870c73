"""The benchmark of many threads: who is prepared when, and that a contender that fails is named while the others go on."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
TIMES = {"eager": 0.004, "inductor": 0.003, "precast": 0.002}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("threads")


def test_ours_come_after_the_rivals_and_failures_are_told(
    threads: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    began: list[tuple[str, str]] = []

    class Process:
        def __init__(self, row: str, contender: str, cache: Path, plan: Any) -> None:
            began.append((row, contender))
            if (row, contender) == ("bert", "inductor"):
                raise threads.Failed("killed by SIGSEGV")
            self.time = TIMES[contender]

        def ask(self, do: str, calls: int = 0) -> dict[str, Any]:
            return {"seconds": 1.0} if do == "first" else {"times": [self.time] * calls, "cpu": 0.0, "peak": 0}

        def close(self) -> None:
            began.append(("closed", ""))

    monkeypatch.setattr(threads, "Process", Process)
    places = [(row, name) for row in ("gpt2", "bert") for name in ("precast", "eager", "inductor")]
    results = threads.measure(places, threads.Plan(2, rounds=3))
    assert [name for _, name in began[4:6]] == ["precast", "precast"], "on a machine of their own"
    assert began[6:] == [("closed", "")] * 5
    assert results["bert"]["inductor"].error == "killed by SIGSEGV" and not results["bert"]["inductor"].blocks
    text = capsys.readouterr().out
    assert "failed: killed by SIGSEGV" in text
    bars = threads.report.steady_bars(results, 1.0)
    assert "geomean 1.50x" in bars[0] and "gpt2 1.50" in bars[0]
