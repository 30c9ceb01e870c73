"""`--json` is on every command, and what is printed then is one JSON document, also where the answer is no."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import precast
import precast.cli.programs.demo
from precast.artifact_store import Store
from precast.cli.main import COMMANDS, main
from precast.cli.programs.demo import ChildReport
from precast.lowering.costs.chip_records import CHIPS
from tests.artifact_store.sample import fill

BUILD = "tests.precast.cli.app:sine"
WORDS: dict[str, tuple[str, ...]] = {
    "build": (BUILD,),
    "check": (BUILD,),
    "explain": (BUILD,),
    "ls": (),
    "show": ("ID",),
    "prune": ("--keep-last", "1", "--dry-run"),
    "rm": ("ID", "--dry-run"),
    "pin": ("ID",),
    "unpin": ("ID",),
    "pins": (),
    "uses": (),
    "verify": (),
    "stats": (),
    "record": ("calls.jsonl",),
    "doctor": (),
    "dir": (),
    "clean": ("--yes",),
    "push": ("SHARED",),
    "pull": ("SHARED", "--trust", "any"),
    "sync": ("STORE", "OTHER"),
    "diff": ("STORE", "STORE"),
    "export": ("BUNDLE",),
    "import": ("BUNDLE", "--trust", "any"),
    "keygen": (),
    "sign": ("ID",),
    "trust": ("ls",),
    "options": (),
    "tune": (BUILD,),
    "profile": (BUILD,),
    "rates": (),
    "report": ("ID", "-o", "PAGE"),
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
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return fill(tmp_path / "store", 2)[0]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_json(
    name: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None and any("--json" in option.opts for option in command.params)
    if name == "demo":  # two processes with a real model: test_the_demo runs them
        report = ChildReport(1.0, 1.0, 1.0, 1.0, 1, 0.0, 0.0, [("a", "b", 1.0)])
        monkeypatch.setattr(precast.cli.programs.demo, "_run_child", lambda kind, folder: report)
    if name == "rates":  # half a minute: tests/precast/profiling has its parts
        monkeypatch.setattr("precast.profiling.chip_rates.measured_chip", lambda device, say: CHIPS["NVIDIA A100"])
    if name == "bench":  # of an hour: tests/benchmarks has its parts
        monkeypatch.setattr(precast, "__file__", str(tmp_path / "precast" / "__init__.py"))
        (tmp_path / "benchmarks").mkdir()
        (tmp_path / "benchmarks" / "run.py").write_text(BENCH)
    artifact = next((store.root / "programs").rglob("*.msgpack")).stem
    (tmp_path / "shared").mkdir()
    places = {
        "ID": artifact,
        "SHARED": f"shared://{tmp_path}/shared",
        "STORE": str(store.root),
        "OTHER": str(tmp_path / "other"),
        "BUNDLE": str(tmp_path / "bundle"),
        "PAGE": str(tmp_path / "page.html"),
    }
    words = [places.get(word, word) for word in WORDS[name]]
    with pytest.raises(SystemExit) as ended:
        main([name, *words, "--json"], prog_name="precast")
    assert ended.value.code in (0, 1)
    json.loads(capfd.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls --json --bogus", "No such option"),
        ("ls --bogus --json", "No such option"),
        ("--bogus ls --json", "No such option"),
        ("--json", "No such option"),
        ("nonsense --json", "No such command 'nonsense'"),
        ("show --json", "Missing argument 'ID'"),
        ("build --json", "Missing argument"),
        ("tune --json", "Missing argument"),
        ("ls more --json", "unexpected extra argument"),
        ("ls --json --store", "requires an argument"),
        ("ls --json --store=", "is empty"),
        ("prune --json --older-than 30", "'30' has no unit"),
        ("prune --json --max-size lots", "is not a size"),
        ("prune --json --keep-last 0", "--keep-last"),
        ("build --json --jobs none a:b", "--jobs"),
        ("build --json a.toml", "cannot be read"),
        ("check --json no_such_module:f", "cannot import no_such_module"),
        ("check --json tests.precast.cli.app:non", "has no function 'non'"),
        ("check --json tests.precast.cli.app:sine --target x", "unknown target 'x'"),
        ("options --json freez", "did you mean 'freeze'?"),
        ("clean --json", "add --yes"),
    ],
)
def test_wrong_usage_is_one_json_document_and_2(words: str, said: str, store: Store) -> None:
    result = CliRunner().invoke(main, words.split())
    assert result.exit_code == 2, result.output
    assert said in json.loads(result.stdout)["error"] and said in result.stderr


def test_every_other_failure_is_json_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("precast.artifact_store.maintenance.verify.verify", broken)
    result = CliRunner().invoke(main, ["verify", "--json"])
    assert result.exit_code == 1 and isinstance(result.exception, RuntimeError)
    assert json.loads(result.stdout)["error"].startswith("RuntimeError: out of luck")


def test_an_answer_is_not_followed_by_an_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "precast.cli.store.store_commands.tell_unreadable", lambda *_: (_ for _ in ()).throw(RuntimeError("after the answer"))
    )
    result = CliRunner().invoke(main, ["ls", "--json"])
    assert result.exit_code == 1 and len(json.loads(result.stdout)) == 2
