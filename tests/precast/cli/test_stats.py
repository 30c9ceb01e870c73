"""`precast stats` over what several processes and machines counted, its views, and `precast diff` of two artifacts."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store
from precast.artifact_store.statistics.places import FOLDER
from precast.artifact_store.statistics.series import Series
from precast.artifact_store.statistics.sheets import Sheet, append
from precast.cli.main import main
from tests.artifact_store.sample import GUARDS, VERSIONS, fill, make
from tests.artifact_store.statistics.openmetrics_parser import parse

KEY, OTHER = "model-0123abcd", "other-4567"


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, f"{words}: {result.output}{result.exception!r}"
    return result


def data(*words: object, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code).stdout)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "s"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return fill(tmp_path / "s", 2)[0]


@pytest.fixture
def counted(store: Store) -> Store:
    now = time.time()
    first = {
        Series("calls", KEY): 90,
        Series("misses", KEY, "", "guards differ", "tensor size of x", "compiled"): 2,
        Series("misses", OTHER, "", "limit reached", "", "eager"): 8,
        Series("compiles", KEY, "", "", "", "stored"): 2,
        Series("compile_seconds", KEY, "", "", "", "stored"): 61.5,
        Series("bypasses", OTHER, "", "it calls numpy", "", "refused"): 1,
        Series("lost_seconds", OTHER, "", "it calls numpy", "", "refused"): 3.25,
        Series("bypassed_calls", OTHER, "", "it calls numpy", "", "refused"): 8,
    }
    second = {
        Series("calls", KEY): 10,
        Series("loads", KEY): 1,
        Series("load_bytes", KEY): 2000,
        Series("saved_seconds", KEY): 30.75,
        Series("fetches", KEY, "s3://bucket"): 1,
        Series("fetch_bytes", KEY, "s3://bucket"): 1000,
    }
    names = {KEY: "app:model", OTHER: "app:other"}
    append(store.root / "statistics", Sheet(now - 60, now, "one", str(store.root), first, names, process=1), store.root)
    (store.root / "statistics" / "two.20200101.jsonl").write_bytes(
        Sheet(now - 7200, now - 7100, "two", "/elsewhere", second, names, process=1).to_line()
    )
    return store


def test_figures_over_processes_and_machines(counted: Store) -> None:
    service = data("stats")["service"]
    assert (service["calls"], service["hits"], service["misses"]) == (108, 98, 10)
    assert service["hit_rate"] == pytest.approx(98 / 108, abs=1e-6)
    assert (service["processes"], service["machines"]) == (2, 2)
    assert (service["compile_seconds"], service["saved_seconds"], service["load_bytes"]) == (61.5, 30.75, 2000)
    assert [cause["cause"] for cause in service["causes"]] == ["limit reached", "guards differ"]
    assert "Raise recompile_limit" in service["causes"][0]["fix"]
    rows = dict(line.split("\t") for line in run("stats").stdout.splitlines())
    assert rows["calls"] == "108" and rows["artifacts"] == "2" and rows["misses: guards differ"] == "2"
    shown = run("stats", "-H").stdout
    assert "90.74 %" in shown and "61.5 s" in shown and "2.0 kB" in shown


def test_by_program_tier_and_time(counted: Store) -> None:
    programs = {row["program"]: row for row in data("stats", "--by", "program")["program"]}
    assert programs[KEY]["hits"] == 98 and programs[OTHER]["hit_rate"] == 0.0 and programs[OTHER]["name"] == "app:other"
    tiers = {row["tier"]: row for row in data("stats", "--by", "tier")["tier"]}
    assert tiers["s3://bucket"]["fetch_bytes"] == 1000 and tiers["local"]["calls"] == 108
    assert [row["calls"] for row in data("stats", "--by", "hour")["hour"]] in ([10, 98], [10, 98])
    assert sum(row["calls"] for row in data("stats", "--by", "day")["day"]) == 108
    assert "app:other" in run("stats", "--by", "program", "-H").stdout
    causes = run("stats", "--by", "cause").stdout.splitlines()
    assert causes == ["limit reached\t\t8\t0\t0\t8\t0", "guards differ\ttensor size of x\t2\t2\t0\t0\t0"]


def test_since_counts_only_what_is_new(counted: Store) -> None:
    assert data("stats", "--since", "1h")["service"]["calls"] == 98
    assert run("stats", "--since", "lots", code=2)


def test_what_is_bypassed_with_the_seconds_that_it_cost(counted: Store) -> None:
    found = data("stats", "--bypass")
    assert found["seconds"] == 3.25
    (row,) = found["bypasses"]
    assert (row["program"], row["kind"], row["reason"], row["attempts"], row["calls"]) == ("app:other", "refused", "it calls numpy", 1, 8)
    shown = run("stats", "--bypass", "-H")
    assert "it calls numpy" in shown.stdout and "3.25 s were spent" in shown.stderr


def test_openmetrics_of_a_store(counted: Store) -> None:
    families = parse(run("stats", "--openmetrics").stdout)
    assert sum(families["precast_calls"][1].values()) == 100
    assert families["precast_artifacts"] == ("gauge", {(): 2.0})
    assert families["precast_hit_ratio"][1][()] == pytest.approx(98 / 108, abs=1e-5)
    assert parse(data("stats", "--openmetrics")["openmetrics"]) == families


def test_a_folder_of_servers_is_counted_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(tmp_path / "sidecar", Sheet(0, time.time(), "m", "/srv/store", {Series("calls", KEY): 5}, {KEY: "app:f"}, process=1))
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "none"))
    assert data("stats", "--from", tmp_path / "sidecar")["service"]["calls"] == 5
    assert "is no folder" in run("stats", "--from", tmp_path / "absent", code=2).stderr
    store = fill(tmp_path / "s")[0]
    monkeypatch.setenv(FOLDER, str(tmp_path / "sidecar"))
    assert data("stats", "--store", store.root)["service"]["calls"] == 0, "of another store"


def test_nothing_counted_is_said(store: Store) -> None:
    assert "No calls are counted yet" in run("stats").stderr
    for view in (["--by", "program"], ["--by", "cause"], ["--bypass"]):
        assert "Nothing is counted yet" in run("stats", *view).stderr
    assert parse(run("stats", "--openmetrics").stdout)["precast_artifacts"][1][()] == 2.0
    assert "exclude one another" in run("stats", "--bypass", "--openmetrics", code=2).stderr


def test_artifacts_differ_in_words(store: Store) -> None:
    first = store.put(*make(10))
    second = store.put(
        *make(
            10,
            versions=dataclasses.replace(VERSIONS, torch="2.12", python="3.12"),
            target="cpu:x86-64-v4",
            digests={"app.model:helper#1": "cd" * 32, "app.model:attention": "ab" * 32},
            guards=GUARDS[1:],
        )
    )
    found = data("diff", first[:12], second[:12], code=1)
    texts = [item["text"] for item in found["differences"]]
    assert texts[:3] == ["the target: cpu:x86-64-v3 != cpu:x86-64-v4", "torch 2.13 != 2.12", "Python 3.11 != 3.12"]
    assert "function `helper` in `app.py` is compiled in by the first only" in texts
    assert "function `attention` in `app/model.py` is compiled in by the second only" in texts
    assert any(text.startswith("guard tensor on x (") and text.endswith("is asked by the first only") for text in texts)
    assert {item["cause"] for item in found["differences"]} == {"target", "torch version", "python version", "code edited", "guards differ"}
    shown = run("diff", first[:12], second[:12], code=1).stdout
    assert "- torch 2.13 != 2.12" in shown and "torch version: Build with the torch that serves" in shown
    assert data("diff", first, first) == {"differences": [], "first": f"model {first[:12]}", "same": True, "second": f"model {first[:12]}"}


def test_programs_differ_in_words(store: Store) -> None:
    store.put(*make(0, program_key="model-9999", options={"freeze": True, "number": 0}))
    found = data("diff", KEY, "model-9999", code=1)
    assert {item["text"] for item in found["differences"]} >= {"option freeze: False != True"}
    assert "is a program key, and the other is not" in run("diff", KEY, store.variants(KEY)[0].artifact_id, code=1).stderr
    assert run("diff", "zzzzzz", "yyyyyy", code=1)
