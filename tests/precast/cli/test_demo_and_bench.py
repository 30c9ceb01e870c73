"""demo and bench: what the thin commands around them do, and the demo itself, which takes too long for `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import precast
import precast.cli.programs.demo
from precast.cli.main import main

FAKE = """
import json, sys
print("| row | ratio |")
if "--json" in sys.argv:
    open(sys.argv[sys.argv.index("--json") + 1], "w").write(json.dumps({"arguments": sys.argv[1:3]}))
raise SystemExit(3 if "--fail" in sys.argv else 0)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose benchmark only repeats its arguments."""
    monkeypatch.setattr(precast, "__file__", str(tmp_path / "precast" / "__init__.py"))
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "run.py").write_text(FAKE)
    return tmp_path


def test_bench_passes_options_on(checkout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert CliRunner().invoke(main, ["bench", "--quick", "--rows", "bert"]).exit_code == 0
    assert "| row | ratio |" in capfd.readouterr().out
    assert CliRunner().invoke(main, ["bench", "--fail"]).exit_code == 3


def test_bench_prints_json(checkout: Path) -> None:
    code = (
        f"import precast; precast.__file__ = {precast.__file__!r}; from precast.cli.main import main; main(['bench', '--json', '--quick'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["arguments"][0] == "--quick" and "ratio" in done.stderr


def test_bench_writes_json_into_a_file(checkout: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    figures = tmp_path / "figures.json"
    assert CliRunner().invoke(main, ["bench", "--quick", "--json", str(figures), "--rows", "bert"]).exit_code == 0
    assert json.loads(figures.read_text()) and "ratio" in capfd.readouterr().out, "the table still goes to stdout"


def test_bench_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precast, "__file__", str(tmp_path / "precast" / "__init__.py"))
    result = CliRunner().invoke(main, ["bench"])
    assert result.exit_code == 1 and "clone the source repository" in result.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_demo_gives_its_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int) -> None:
    seen = []

    def fake(store: Path | None, as_json: bool) -> int:
        seen.append((store, as_json))
        return code

    monkeypatch.setattr(precast.cli.programs.demo, "run", fake)
    assert CliRunner().invoke(main, ["demo", "--store", str(tmp_path), "--json"]).exit_code == code
    assert seen == [(tmp_path, True)]


def test_demo_that_cannot_run_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(store: Path | None, as_json: bool) -> int:
        raise precast.cli.programs.demo.DemoError("the demo's model is not installed: pip install it")

    monkeypatch.setattr(precast.cli.programs.demo, "run", fake)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1 and "pip install" in result.stderr


@pytest.mark.slow  # two fresh processes, of which one compiles a real model
def test_the_demo(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    assert precast.cli.programs.demo.run(store, as_json=True) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["warm"]["first"] < report["cold"]["first"]
    assert max(report[kind]["error"] for kind in ("cold", "warm")) < 1e-4
    assert dict(pair[:2] for pair in report["warm"]["nearest"])["reset my password"].startswith("I forgot my login")
    assert any("SentenceEncoder" in line for line in report["store"])
    cold, warm = ({**report[kind], "nearest": [tuple(item) for item in report[kind]["nearest"]]} for kind in ("cold", "warm"))
    screen = precast.cli.programs.demo._screen(
        precast.cli.programs.demo.ChildReport(**cold), precast.cli.programs.demo.ChildReport(**warm), store, kept=True
    )
    assert len(screen.splitlines()) <= 24 and "speed-up over eager" in screen and f"precast ls --store {store}" in screen
