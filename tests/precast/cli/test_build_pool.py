"""`precast build --jobs`: what one worker would make, whichever worker makes it; who dies, is interrupted or measures does it alone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.building import usable, worker_pool
from precast.building.build_file import ProgramSpec
from precast.building.build_order import Known, Lines, Task
from precast.building.worker_pool import Crew, Worker
from precast.codegen.cpu.tuning import Chooser

ROOT = str(Path(__file__).parents[3])
PROGRAMS = """
import os, time
import torch

def note(name):
    print("a factory prints")
    with open("factories", "a") as file:
        file.write(f"{os.getpid()} {name}\\n")

def scaled(x):
    return x.sin() * x.shape[0]

def small():
    note("small")
    return scaled, [((torch.ones(3),), {})]

def larger():
    note("larger")
    return scaled, [((torch.ones(n),), {}) for n in (5, 7)]

def exact():
    note("exact")
    return scaled, [((torch.ones(n),), {}) for n in (3, 4, 5)]

def cosine(n):
    note(f"cosine {n}")
    return torch.cos, [((torch.ones(n),), {})]

@torch.compiler.disable
def fatal(x):
    if x.sum() < 0:
        os.kill(os.getpid(), 9)
    return x

def breaks(x):
    return fatal(x.exp()- 2) + 1

def dies():
    note("dies")
    return breaks, [((n * torch.ones(4),), {}) for n in (1, 0, 2)]

def fails():
    raise RuntimeError("no weights")

def waits():
    note("waits")
    time.sleep(120)
"""
SAME = """
store = "store"
[[program]]
factory = "programs:small"
[[program]]
factory = "programs:larger"
targets = ["cpu:x86-64-v3", "cpu:x86-64-v2"]
[[program]]
factory = "programs:cosine"
arguments = { n = 4 }
name = "cosine"
[[program]]
factory = "programs:exact"
options = { dynamic = "no" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "programs.py").write_text(PROGRAMS)
    return tmp_path


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
    given = [sys.executable, "-m", "precast.cli", *words]
    return subprocess.Popen(given, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(folder: Path, *words: str, code: int = 0) -> tuple[Any, str]:
    process = command(folder, *words)
    out, beside = process.communicate(timeout=300)
    assert process.returncode == code, out + beside
    return json.loads(out[out.index("{\n") :]), beside


def test_several_workers_make_what_one_makes(folder: Path) -> None:
    """Two programs of one key and two targets that learn from one another among them: equal artifacts, in the order of the file."""
    (folder / "b.toml").write_text(SAME)
    alone, _ = told(folder, "build", "b.toml", "--jobs", "1", "--json", "--store", "alone")
    (folder / "factories").unlink()
    several, beside = told(folder, "build", "b.toml", "--jobs", "3", "--json")
    rows = [[{**item, "seconds": 0} for item in report["programs"]] for report in (alone, several)]
    assert rows[0] == rows[1] and len(rows[0]) == 9
    assert several["counts"] == alone["counts"] and several["counts"]["compiled"] == 7 and several["counts"]["there already"] == 2
    made = Counter((folder / "factories").read_text().splitlines())
    assert set(made.values()) == {1} and 1 < len({line.split()[0] for line in made}) <= 3
    assert "larger: compiling signature 2 of 2 for cpu:x86-64-v2" in beside and "a factory prints" in beside
    again, _ = told(folder, "build", "b.toml", "--json", "--jobs", "2")
    assert again["counts"] == {"compiled": 0, "there already": 9, "taken": 0, "failed": 0}


def test_who_dies_is_reported_and_the_rest_goes_on(folder: Path) -> None:
    names = ("dies", "fails", "cosine")
    (folder / "b.toml").write_text(
        'store = "store"\n' + "".join(f'[[program]]\nfactory = "programs:{name}"\n' for name in names) + "arguments = { n = 4 }\n"
    )
    report, _ = told(folder, "build", "b.toml", "--jobs", "2", "--json", code=1)
    found = [(item["program"], item["signature"], item["status"]) for item in report["programs"]]
    assert found == [
        ("dies", 1, "compiled"),
        ("dies", 2, "failed"),
        ("dies", 3, "there already"),
        ("fails", 0, "failed"),
        ("cosine", 1, "compiled"),
    ]
    assert "ended by SIGKILL" in report["programs"][1]["reason"] and "no weights" in report["programs"][3]["reason"]


def test_an_interruption_ends_all(folder: Path) -> None:
    (folder / "b.toml").write_text('store = "s"\n' + "".join(f'[[program]]\nfactory = "programs:waits"\nname = "w{n}"\n' for n in range(3)))
    process = command(folder, "build", "b.toml", "--jobs", "3")
    notes = folder / "factories"
    deadline = time.monotonic() + 120
    while not notes.exists() or len(notes.read_text().splitlines()) < 3:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, beside = process.communicate(timeout=20)
    assert process.returncode == 1 and "Aborted!" in beside and "Traceback" not in beside
    for line in notes.read_text().splitlines():
        with pytest.raises(ProcessLookupError):
            os.kill(int(line.split()[0]), 0)


def spec(name: str | None = None, *, targets: tuple[str, ...] = ("cpu:x86-64-v3",), **options: Any) -> ProgramSpec:
    return ProgramSpec("m:f", name or "f", "here", name, options=options or None, targets=targets)


def test_programs_are_dealt_in_the_order_of_the_file() -> None:
    lines = Lines([spec("a"), spec("b"), spec("c")])
    assert [lines.other() for _ in range(4)] == [Task(n, "cpu:x86-64-v3", 0) for n in range(3)] + [None]
    lines.loaded(1, Known(2, "b", 0.1))
    assert lines.own(1) == Task(1, "cpu:x86-64-v3", 1)
    assert lines.own(0) is None  # one signature of a program at a time
    assert not lines.done(Task(1, "cpu:x86-64-v3", 1), 1.0)
    assert lines.own(1) == Task(1, "cpu:x86-64-v3", 2) and lines.done(Task(1, "cpu:x86-64-v3", 2), 1.0)
    assert lines.lost(0) == ["cpu:x86-64-v3"] and lines.own(0) is None


@pytest.mark.parametrize(
    ("names", "keys", "waits"),
    [
        ((None, None), ("k", "k"), True),  # two factories of one function
        ((None, None), ("k", "l"), False),
        ((None, None), (None, "k"), True),  # the first one's factory still runs
        (("a", "b"), (None, "k"), False),  # another name is another key
    ],
)
def test_programs_of_one_key_wait_for_one_another(names: tuple[Any, Any], keys: tuple[Any, Any], waits: bool) -> None:
    lines = Lines([spec(name) for name in names])
    assert lines.other() is not None and lines.other() is not None
    for number, key in enumerate(keys):
        if key is not None:
            lines.loaded(number, Known(1, key, 0.0))
    assert (lines.own(1) is None) is waits
    first = lines.own(0)
    if keys == ("k", "k"):
        assert first == Task(0, "cpu:x86-64-v3", 1) and lines.done(first, 0.0)
        assert lines.own(1) == Task(1, "cpu:x86-64-v3", 1)


@pytest.mark.parametrize(
    ("targets", "count", "options", "at_once"),
    [
        (("cpu:x86-64-v3", "cpu:x86-64-v2"), 2, {}, 1),  # the second target learns from the first
        (("cpu:x86-64-v3", "cpu:x86-64-v2"), 1, {}, 2),  # from one signature nothing is learnt
        (("cuda:sm_80", "cuda:sm_90"), 2, {}, 2),
        (("cuda:sm_80", "cuda:ptx_80"), 2, {}, 1),
        (("cpu:x86-64-v3",), 3, {"dynamic": "no"}, 3),
        (("cpu:x86-64-v3",), 3, {"dynamic": "yes"}, 1),
    ],
)
def test_what_may_be_built_at_once(targets: tuple[str, ...], count: int, options: dict[str, Any], at_once: int) -> None:
    lines = Lines([spec("a", targets=targets, **options)])
    assert lines.other() is not None
    lines.loaded(0, Known(count, "k", 0.0))
    found = [task for _ in range(9) if (task := lines.own(0)) is not None]
    assert len(found) == at_once == len(set(found)) and lines.splits is (options.get("dynamic") == "no")


def test_a_slow_factory_is_not_called_twice_for_little() -> None:
    lines = Lines([spec("a", dynamic="no")])
    assert lines.other() is not None
    lines.loaded(0, Known(3, "k", 60.0))
    assert lines.own(0) is not None and lines.other() is None and lines.own(0) is not None


@pytest.mark.parametrize(
    ("jobs", "programs", "cores", "most"), [(None, 3, 8, 1), (None, 4, 8, 2), (None, 27, 8, 8), (None, 27, 1, 1), (5, 2, 1, 5)]
)
def test_as_many_workers_as_pay(jobs: int | None, programs: int, cores: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable, "cores", lambda: cores)
    assert Crew.of(jobs, Lines([spec(f"p{n}") for n in range(programs)])).most == most


def test_memory_limits_workers_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usable, "free_memory", lambda: 10 << 30)
    crew = Crew(4, chosen_by_user=False)
    assert crew.admits(0) and not crew.admits(1)  # nothing is known of what one takes
    crew.largest = 4 << 30
    assert crew.admits(3) and not crew.admits(4)
    crew.largest = 5 << 30
    assert not crew.admits(1) and Crew(4, chosen_by_user=True, largest=5 << 30).admits(3)
    monkeypatch.undo()
    assert 0 < usable.free_memory() and usable.cores() >= 1 and usable.peak_memory() > 1 << 20


def _state(pid: int) -> str:
    """As /proc says; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _soon(pids: list[int], states: str) -> None:
    deadline = time.monotonic() + 20
    while not all((_state(pid) or "-") in states for pid in pids):
        assert time.monotonic() < deadline, [_state(pid) for pid in pids]
        time.sleep(0.02)


def test_a_worker_is_halted_and_ended_with_what_it_started() -> None:
    """Compilers lead process groups of their own."""
    started = subprocess.Popen(
        [sys.executable, "-c", "import subprocess as s; s.run(['sleep', '60'], process_group=0)"], start_new_session=True
    )
    worker = Worker(started, None)  # type: ignore[arg-type]
    deadline = time.monotonic() + 60
    while not (children := worker_pool._descendants(started.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    family = [started.pid, *children]
    worker.signal(signal.SIGSTOP)
    _soon(family, "TD")  # D: it waits for a child of vfork, which is halted before it begins
    worker.signal(signal.SIGCONT)
    _soon(family, "SR")
    worker.signal(signal.SIGKILL)
    started.wait()
    _soon(family, "-Z")


def test_library_calls_are_measured_alone() -> None:
    said: list[str] = []

    @contextlib.contextmanager
    def alone() -> Iterator[None]:
        said.append("quiet")
        yield
        said.append("loud")

    chooser = Chooser(alone=alone)
    chooser.pick("test_library_calls_are_measured_alone", lambda: {"a": lambda: said.append("run")}, "a")
    assert said[0] == "quiet" and said[-1] == "loud" and set(said[1:-1]) == {"run"}
