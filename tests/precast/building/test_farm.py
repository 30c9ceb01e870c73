"""The farm's loop with an engine of functions: every task once, lost workers' tasks again, refusals in words, one report."""

from __future__ import annotations

import itertools
import json
import pickle
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.artifact_store.remote.settings import Setting
from precast.building.build_file import ProgramSpec
from precast.building.build_job import Outcome
from precast.building.build_order import Known, Lines, Task
from precast.building.farm import engines, work
from precast.building.farm.executor import Heard, Job, Place, place_of
from precast.building.farm.farm import Farm, plain_spec, refuse_secrets
from precast.building.ledger import Ledger, Stopped
from precast.building.progress import Tally
from precast.cli.main import main
from tests.precast.building.fake_engine import Engine, Worker, answers, dies_at, honest


class Said:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)

    def warn(self, line: str) -> None:
        self.warnings.append(line)

    def show(self, tally: Tally) -> None:
        pass


def specs(count: int, **options: object) -> list[ProgramSpec]:
    return [ProgramSpec("m:f", f"p{n}", "here", f"p{n}", targets=("cpu:x86-64-v3",), options=options or None) for n in range(count)]


def farm(store: Store, engine: Engine, programs: list[ProgramSpec], retries: int = 2) -> tuple[Farm, Said]:
    said, lines = Said(), Lines(programs)
    ticks = itertools.count()
    return Farm(programs, (), store, engine, Ledger(programs, lines, said), lines, retries, clock=lambda: next(ticks)), said


def found(outcomes: list[Outcome]) -> list[tuple[str, int, str]]:
    return [(outcome.program, outcome.signature, outcome.status) for outcome in outcomes]


def all_of(count: int) -> list[tuple[str, int, str]]:
    return [(f"p{n}", signature, "compiled") for n in range(count) for signature in (1, 2)]


def signatures(engine: Engine) -> Counter[tuple[str, int]]:
    return Counter((job["spec"]["name"], job["number"]) for _, job in engine.given if job["kind"] == "build")


def test_every_task_once_in_the_order_of_the_file(store: Store) -> None:
    engine = Engine({"a": honest, "b": honest, "c": honest})
    built, said = farm(store, engine, specs(5))
    assert found(built.run()) == all_of(5)
    assert set(signatures(engine).values()) == {1}
    assert {worker for worker, _ in engine.given} == {"a", "b", "c"}
    summary = built.summary()
    assert summary.again == 0 and sum(worker["jobs"] for worker in summary.workers) == 10
    assert said.notes[-1].startswith("p") and "10 of 10, 0 failed" in said.notes[-1] and not said.warnings
    assert not list((store.root / "leases").glob("farm-*"))


@pytest.mark.parametrize("kind", ["load", "build"])
def test_what_a_lost_worker_was_at_is_run_again_elsewhere(kind: str, store: Store) -> None:
    engine = Engine({"a": dies_at(lambda job: job["kind"] == kind and job["spec"]["name"] == "p1"), "b": honest})
    engine.here = dict(reversed(engine.here.items())) if kind == "build" else engine.here
    built, said = farm(store, Engine({"a": engine.here["a"]}, {"late": honest}), specs(3))
    assert found(built.run()) == all_of(3)
    summary = {worker["name"]: worker["state"] for worker in built.summary().workers}
    assert summary == {"a": "lost", "late": "fit"} and built.summary().again == 1
    assert said.warnings == ["a: it was killed"]


def test_a_job_that_kills_every_worker_is_one_failed_line(store: Store) -> None:
    fatal = dies_at(lambda job: job["kind"] == "build" and (job["spec"]["name"], job["number"]) == ("p1", 1))
    engine = Engine({"w0": fatal}, {f"w{n}": fatal for n in range(1, 9)})
    built, _ = farm(store, engine, specs(3), retries=2)
    outcomes = built.run()
    assert found(outcomes) == [item if item != ("p1", 1, "compiled") else ("p1", 1, "failed") for item in all_of(3)]
    assert signatures(engine)["p1", 1] == 3
    assert "3 workers were lost while building it, the last: it was killed" in outcomes[2].reason


def test_a_factory_that_kills_every_worker_fails_its_program_only(store: Store) -> None:
    fatal = dies_at(lambda job: job["kind"] == "load" and job["spec"]["name"] == "p0")
    built, _ = farm(store, Engine({"w0": fatal}, {f"w{n}": fatal for n in range(1, 9)}), specs(2), retries=0)
    assert found(built.run()) == [("p0", 0, "failed"), *all_of(2)[2:]]


def test_a_factory_that_raises_fails_its_program_only(store: Store) -> None:
    def raising(name: str, job: Job) -> Heard:
        bad = job["kind"] == "load" and job["spec"]["name"] == "p0"
        return Heard(name, answer={"kind": "failed", "text": "no weights"}) if bad else honest(name, job)

    outcomes = farm(store, Engine({"a": raising, "b": raising}), specs(2))[0].run()
    assert found(outcomes) == [("p0", 0, "failed"), *all_of(2)[2:]] and outcomes[0].reason == "no weights"


def test_a_worker_that_does_not_fit_is_left_out_and_named(store: Store) -> None:
    engine = Engine({"a": answers("unfit", text="it has torch 2.11, and this machine torch 2.13"), "b": honest})
    built, said = farm(store, engine, specs(2))
    assert found(built.run()) == all_of(2)
    assert said.warnings == ["worker a is refused: it has torch 2.11, and this machine torch 2.13"]
    assert [job["kind"] for worker, job in engine.given if worker == "a"] == ["probe"]


def test_a_worker_whose_compiler_breaks_later_is_left_out_and_its_task_run_again(store: Store) -> None:
    def breaking(name: str, job: Job) -> Heard:
        return Heard(name, answer={"kind": "unfit", "text": "no g++"}) if job["kind"] == "build" else honest(name, job)

    built, said = farm(store, Engine({"a": breaking, "b": honest}), specs(2))
    assert found(built.run()) == all_of(2) and said.warnings == ["worker a is refused: no g++"]


@pytest.mark.parametrize(
    ("workers", "spares", "words"),
    [
        ({"a": answers("unfit", text="it has torch 2.11")}, {}, "no worker can build: a is refused: it has torch 2.11"),
        ({"a": lambda name, job: Heard(name, broken="ModuleNotFoundError: precast")}, {}, "cannot run jobs: ModuleNotFoundError: precast"),
        ({f"w{n}": dies_at(lambda job: True) for n in range(9)}, {}, r"is lost: it was killed \(3 workers like it\)"),
        ({"a": answers("stopped", text="here: option x", usage=True)}, {}, "here: option x"),
        ({}, {}, "no worker has come in 60 s; start some"),
        ({"a": dies_at(lambda job: job["kind"] == "build" and job["number"] == 2)}, {}, "1 of 4, 0 failed.*the same command goes on"),
    ],
)
def test_a_build_that_nobody_can_do_stops_with_a_sentence(
    workers: Mapping[str, Worker], spares: Mapping[str, Worker], words: str, store: Store
) -> None:
    with pytest.raises(Stopped, match=words):
        farm(store, Engine(workers, spares), specs(2))[0].run()
    assert not list((store.root / "leases").glob("farm-*"))


@pytest.mark.parametrize("name", ["precast", "lowering", "torch", "Python"])
def test_other_versions_are_refused_with_both_named(name: str, store: Store) -> None:
    answer = work.run({"versions": {**work.versions(), name: "0.0"}})
    assert answer["kind"] == "unfit"
    assert f"it has {name} {work.versions()[name]}, and this machine {name} 0.0" in answer["text"]


def probe(at: Store, **other: object) -> dict[str, object]:
    known = {
        "kind": "probe",
        "build": "1",
        "versions": work.versions(),
        "store": str(at.root),
        "mark": "",
        "shared_by": 1,
        "path": [],
        "remotes": [],
        "provenance": None,
    }
    return {**known, **other}


def test_a_worker_that_sees_another_folder_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "_held", None)
    monkeypatch.setattr(work, "prepare", lambda store: None)
    assert "does not see the store" in work.run(probe(store, mark="farm-x"))["text"]
    with store.lease("farm-x"):
        assert work.run(probe(store, mark="farm-x"))["kind"] == "fit"
        assert "does not see the store" in work.run(probe(store, store=str(tmp_path / "other"), mark="farm-x", build="2"))["text"]


def test_jobs_are_plain_data_and_hold_nothing_of_the_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-of-this-machine")
    engine = Engine({"a": honest})
    farm(store, engine, specs(1, freeze=True))[0].run()
    for _, job in engine.given:
        assert json.loads(json.dumps(job)) == job and b"a-secret-of-this-machine" not in pickle.dumps(job)
    assert plain_spec(specs(1)[0])["targets"] == ["cpu:x86-64-v3"]


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("dask://local", Place("dask", "", None, "dask://local")),
        ("dask://local?workers=3", Place("dask", "", 3, "dask://local?workers=3")),
        ("ray://local?workers=1", Place("ray", "", 1, "ray://local?workers=1")),
        ("dask://10.0.0.7:8786", Place("dask", "10.0.0.7:8786", None, "dask://10.0.0.7:8786")),
        ("dask+tls://farm:8786", Place("dask+tls", "farm:8786", None, "dask+tls://farm:8786")),
        ("ray://[::1]:10001?workers=64", Place("ray", "[::1]:10001", 64, "ray://[::1]:10001?workers=64")),
    ],
)
def test_executors_by_url(url: str, read: Place) -> None:
    assert place_of(url) == read


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dask", "give dask://host:port"),
        ("spark://h:1", "give dask://host:port"),
        ("dask://", "give dask://host:port"),
        ("dask://h", "the port is missing"),
        ("dask://h:99999", "Port out of range"),
        ("dask://h:1/x", "give dask"),
        ("dask://local?worker=2", "unknown setting 'worker'"),
        ("dask://local?workers=0", "workers=0 is not a number from 1 on"),
        ("dask://local?workers", "give dask"),
        ("dask://h:1?workers=2", "all used"),
    ],
)
def test_wrong_urls_are_wrong_usage(url: str, words: str) -> None:
    with pytest.raises(Stopped, match=words) as stopped:
        place_of(url)
    assert stopped.value.usage


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(Stopped, match="can be read by every user") as stopped:
        place_of("dask://me:hunter2@farm:8786")
    assert "hunter2" not in str(stopped.value)


@pytest.mark.parametrize(("engine", "extra"), [("dask", r"precast\[dask\]"), ("ray", r"precast\[ray\]")])
def test_an_engine_that_is_not_installed_is_named(engine: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, {"dask": "distributed", "ray": "ray"}[engine], None)
    with pytest.raises(Stopped, match=extra):
        engines.connect(place_of(f"{engine}://local"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--executor", "dask://local", "--jobs", "2"), "--jobs is for processes of this machine"),
        (("--executor", "spark://h:1"), "give dask://host:port"),
        (("--executor", "dask://h"), "the port is missing"),
        (("--executor", "dask://local", "--retries", "-1"), "--retries"),
        (("--executor", "dask://local", "--remote", "nonsense://x"), "there are no remotes of the kind nonsense"),
        (("--builder", ""), "is empty"),
    ],
)
def test_wrong_usage_of_the_command(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, ["build", "tests.precast.cli.app:sine", *words, "--json"])
    assert done.exit_code == 2 and said in json.loads(done.stdout)["error"]


def test_the_command_reports_the_farm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engines, "connect", lambda place: Engine({"a": dies_at(lambda job: job["kind"] == "load")}, {"b": honest}))
    given = ["build", "tests.precast.cli.app:sine", "--executor", "dask://local", "--store", str(tmp_path / "s"), "--json"]
    done = CliRunner().invoke(main, given)
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["counts"]["compiled"] == 2 and report["farm"]["again"] == 1
    assert {worker["name"]: worker["state"] for worker in report["farm"]["workers"]} == {"a": "lost", "b": "fit"}
    assert "1 worker lost, 1 job run again" in done.stderr


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("s3://bucket/precast?region=eu", False),
        ("shared:///mnt/precast", False),
        ("https://cache/precast?keyspace=a", False),
        ("https://me:hunter2@cache/precast", True),
        ("redis://:hunter2@cache:6379", True),
        ("s3://bucket/precast?secret_access_key=hunter2", True),
        ("az://box/precast?sas_token=hunter2", True),
        ("s3://bucket/precast?access-key=hunter2", True),
    ],
)
def test_remotes_with_secrets_in_their_urls_are_refused(url: str, secret: bool) -> None:
    if not secret:
        refuse_secrets(Setting(url, where="--remote"))
        return
    with pytest.raises(Stopped, match="set credentials in the environment of the workers") as stopped:
        refuse_secrets(Setting(url, where="--remote"))
    assert "hunter2" not in str(stopped.value) and stopped.value.usage


def test_remotes_that_cannot_be_written_are_no_place_for_artifacts(store: Store) -> None:
    built, _ = farm(store, Engine({"a": honest}), specs(1))
    built.remotes = (Setting("s3://bucket/precast", "ro"),)
    with pytest.raises(Stopped, match="no remote may be written"):
        built.run()


def test_dealing_ten_thousand_tasks_takes_moments() -> None:
    """A pass over all lines for each task would take minutes."""
    lines, begin = Lines(specs(10_000)), time.process_time()
    at: dict[int, Task] = {}
    has: dict[int, int] = {}
    dealt = 0
    while not lines.finished:
        for worker in range(100):
            if worker not in at and (task := lines.own(has.get(worker)) or lines.other()) is not None:
                at[worker] = task
        worker, task = next(iter(at.items()))
        del at[worker]
        has[worker], dealt = task.program, dealt + 1
        if task.number == 0:
            lines.loaded(task.program, Known(1, f"k{task.program}", 0.0))
        else:
            lines.done(task, 0.1)
    assert dealt == 20_000 and time.process_time() - begin < 10
    assert lines.total() == 10_000


def test_a_task_of_a_lost_worker_comes_first_again() -> None:
    lines = Lines(specs(2, dynamic="no"))
    first = lines.other()
    assert first == Task(0, "cpu:x86-64-v3", 0)
    lines.again(first)
    assert lines.other() == first
    lines.loaded(0, Known(2, "k", 0.0))
    one, two = lines.own(0), lines.own(0)
    assert one is not None and two is not None and lines.own(0) is None
    lines.again(two)
    lines.again(one)
    assert lines.own(0) == one and lines.own(0) == two
    assert not lines.done(one, 0.1) and lines.done(two, 0.1) and not lines.finished
