"""`--json` is on every command, and what is printed then is one JSON document, also where the answer is no."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

import precast
import precast.demo
from precast.artifact_store import Store
from precast.cli import COMMANDS, main
from precast.demo import ChildReport
from tests.store.sample import fill

BUILD = "tests.cli.app:sine"
WORDS: dict[str, tuple[str, ...]] = {
    "build": (BUILD,),
    "check": (BUILD,),
    "explain": (BUILD,),
    "ls": (),
    "show": ("ID",),
    "prune": ("--keep-last", "1", "--dry-run"),
    "verify": (),
    "stats": (),
    "doctor": (),
    "dir": (),
    "clean": ("--yes",),
    "options": (),
    "tune": (BUILD,),
    "demo": (),
    "bench": (),
}
BENCH = """
import sys
print("| row | ratio |")
open(sys.argv[sys.argv.index("--json") + 1], "w").write("{}")
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "store"))
    return fill(tmp_path / "store", 2)[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json(
    name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and any("--json" in option.opts for option in command.params)
    if name == "demo":  # two processes with a real model: test_the_demo runs them
        report = ChildReport(1.0, 1.0, 1.0, 1.0, 1, 0.0, 0.0, [("a", "b", 1.0)])
        monkeypatch.setattr(precast.demo, "_run_child", lambda kind, folder: report)
    if name == "bench":  # of an hour: tests/benchmarks has its parts
        monkeypatch.setattr(precast, "__file__", str(tmp_path / "precast" / "__init__.py"))
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "benchmarks" / "run.py").write_text(BENCH)
    artifact = next((store.root / "programs").rglob("*.msgpack")).stem
    words = [artifact if word == "ID" else word for word in WORDS[name]]
    with pytest.raises(SystemExit) as ended:
        main([name, *words, "--json"], prog_name="precast")
    assert ended.value.code in (0, 1)
    json.loads(capfd.readouterr().out)
