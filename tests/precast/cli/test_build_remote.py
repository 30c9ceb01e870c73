"""`precast build` with a remote: what it made is there when it ends, another machine compiles nothing, what is not sent is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.artifact_store.remote import spool
from precast.artifact_store.remote.attach import open_tier
from precast.artifact_store.remote.settings import from_url
from precast.cli.main import main

BUILD = "tests.precast.cli.app:sine"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRECAST_REMOTE", "")  # restored afterwards, whatever --remote sets
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def build(store: Path, remote: str) -> tuple[int, list[str], str]:
    """Exit code, statuses of the signatures, stderr."""
    result = CliRunner().invoke(main, ["build", BUILD, "--jobs", "1", "--store", str(store), "--remote", remote, "--json"])
    answer: Any = json.loads(result.stdout)
    return result.exit_code, [outcome["status"] for outcome in answer["programs"]], result.stderr


def test_what_one_machine_builds_another_fetches(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    remote = f"{tmp_path / 'shared'}?trust=any&budget=30s"
    code, statuses, _ = build(tmp_path / "one", remote)
    assert code == 0 and set(statuses) == {"compiled"}
    assert spool.pending(tmp_path / "one") == []
    keys = set(open_tier(from_url(remote, "test")).program_keys())
    assert keys == set(Store.open(tmp_path / "one").programs())
    code, statuses, _ = build(tmp_path / "two", remote)
    assert code == 0 and set(statuses) == {"there already"}


def test_what_cannot_be_sent_is_said_and_noted(tmp_path: Path) -> None:
    code, statuses, said = build(tmp_path / "store", f"{tmp_path / 'nowhere'}?trust=any")
    assert code == 1 and set(statuses) == {"compiled"}
    assert "could not be sent to shared://" in said
    assert {item.kind for item in spool.pending(tmp_path / "store")} >= {"artifact"}


def test_a_remote_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["dir", "--remote", "foo://x", "--json"])
    assert result.exit_code == 2 and "no remotes of the kind foo" in json.loads(result.stdout)["error"]


def test_dir_and_doctor_tell_of_remotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("PRECAST_REMOTE", f"{tmp_path / 'shared'}?mode=ro&budget=1s {tmp_path / 'gone'}")
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "store"))
    said = json.loads(CliRunner().invoke(main, ["dir", "--json"]).stdout)["remotes"]
    assert [(item["mode"], item["budget"]) for item in said] == [("ro", 1.0), ("rw", 2.0)]
    assert {item["where"] for item in said} == {"PRECAST_REMOTE"}
    findings = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)
    good, bad = [item for item in findings if item["topic"] == "remote"]
    assert good["state"] == "ok" and "answers in" in good["detail"]
    assert bad["state"] == "warning" and "cannot be asked" in bad["detail"]
