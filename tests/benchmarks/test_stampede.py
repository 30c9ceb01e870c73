"""A small stampede on a cold remote: processes of two machines, and each artifact is compiled once."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "remote"


@pytest.mark.slow
def test_two_machines_compile_each_artifact_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    stampede = importlib.import_module("stampede")
    found = stampede.run("folder", 8, 2, small=True)
    assert found.right
    assert found.compiled == {"plain": 1, "breaks": 1, "breaks (resumed at line 12)": 1, "sized": 2}  # sized: static, then symbolic
    assert found.fetched >= 4 and found.waited >= 4  # one machine compiled what the other fetched, and processes waited for it
