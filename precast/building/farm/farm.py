"""The client of a build farm: deals the tasks of a build to an engine's workers, runs those of lost workers again, keeps one ledger.

A task is the same as for `--jobs`, begins by the same rules (`build_order.py`), and so makes the same artifacts.
"""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from precast.artifact_store import Store
from precast.artifact_store.format.text import many
from precast.artifact_store.remote.settings import Setting
from precast.building.build_file import ProgramSpec
from precast.building.build_job import Outcome
from precast.building.build_order import Known, Lines, Task
from precast.building.farm.executor import Executor, Heard, Job
from precast.building.farm.work import versions
from precast.building.ledger import Ledger, Stopped
from precast.compiling.provenance import asked

_SECRET = re.compile(r"secret|token|passw|credential|signature|(^|[_-])(sig|key|sas)($|[_-])", re.I)
LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 60.0
"""How long a farm without any worker is waited for."""
GOODBYE_SECONDS = 5.0
PROBES = 3
"""So many workers in a row that are lost before they have answered anything end the build."""


@dataclass
class Worker:
    """One worker, as the report says it. `state`: "new" until it has answered, "fit", "refused" or "lost", with the reason. `seconds`: from
    giving it jobs to hearing of them; `own`: of these, what it needed for them by its own clock; `first`, `last`: when it was given its
    first task, and when it was heard of last.
    """

    name: str
    host: str = ""
    state: str = "new"
    reason: str = ""
    jobs: int = 0
    seconds: float = 0.0
    own: float = 0.0
    first: float | None = field(default=None, repr=False)
    last: float = field(default=0.0, repr=False)
    task: Task | None = field(default=None, repr=False)
    program: int | None = field(default=None, repr=False)
    busy: bool = field(default=False, repr=False)
    since: float = field(default=0.0, repr=False)


@dataclass(frozen=True)
class Summary:
    """The farm's part of the report: `again`, how often a task was run again; `seconds`: from the first to the last task."""

    executor: str
    seconds: float
    again: int
    workers: tuple[Mapping[str, Any], ...]


@dataclass
class Farm:
    """One build. `retries`: how often a task is run again whose worker was lost; `path`: what workers put in front of sys.path;
    `remotes`: where artifacts land, by way of a folder of each worker's own; where there are none, the folder of `store` is shared by all.
    """

    programs: Sequence[ProgramSpec]
    path: Sequence[str]
    store: Store
    executor: Executor
    ledger: Ledger
    lines: Lines
    retries: int = 2
    remotes: Sequence[Setting] = ()
    patience: float = PATIENCE_SECONDS
    clock: Callable[[], float] = time.monotonic
    _workers: dict[str, Worker] = field(default_factory=dict)
    _tries: Counter[Task] = field(default_factory=Counter)
    _lost_at_probe: int = 0
    _build: str = field(default_factory=lambda: uuid.uuid4().hex)
    _mark: str = ""
    _begin: float = 0.0

    def run(self) -> list[Outcome]:
        """Build everything; returns the outcomes in the order of the file. Raises Stopped."""
        self._begin = heard_last = self.clock()
        for setting in self.remotes:
            refuse_secrets(setting)
        if self.remotes and not any(setting.mode == "rw" for setting in self.remotes):
            raise Stopped("no remote may be written (mode=ro), so that workers have no place for what they build", usage=True)
        with self.store.lease(f"farm-{self._build}", timeout=1.0) as lease:
            self._mark = f"farm-{self._build}" if lease.held else ""  # by which workers see that their folder is this one
            while not self.lines.finished:
                self._meet()
                self._deal()
                heard = self.executor.hear(LOOK_SECONDS)
                for item in heard:
                    self._hear(item)
                if heard or any(worker.busy for worker in self._workers.values()):
                    heard_last = self.clock()
                elif self.clock() - heard_last > self.patience or self._all_refused():
                    raise Stopped(self._why_nobody(), usage=False)
                self.ledger.display.show(self.ledger.tally)
            self._say_goodbye()
        return self.ledger.outcomes()

    def summary(self) -> Summary:
        """For the report."""
        shown = ("name", "host", "state", "reason", "jobs", "seconds", "own")
        workers = ({key: value for key, value in asdict(worker).items() if key in shown} for worker in self._workers.values())
        return Summary(self.executor.place, round(self.clock() - self._begin, 3), self.ledger.tally.again, tuple(workers))

    def workers(self) -> tuple[Worker, ...]:
        """All that were met."""
        return tuple(self._workers.values())

    # -- workers

    def _meet(self) -> None:
        """Ask every worker that is new whether it can work for this build."""
        present = self.executor.workers()
        for name in present:
            if name not in self._workers:
                worker = self._workers[name] = Worker(name)
                self._give(worker, {"kind": "probe"})
        for name, worker in self._workers.items():
            if not worker.busy and worker.state in ("new", "fit") and name not in present:
                worker.state, worker.reason = "lost", "it left while it had nothing to do"

    def _all_refused(self) -> bool:
        return bool(self._workers) and all(worker.state == "refused" for worker in self._workers.values())

    def _why_nobody(self) -> str:
        refused = [worker for worker in self._workers.values() if worker.reason]
        done = (
            f"; {self.ledger.tally} and what is built is stored: the same command goes on with the rest" if self.ledger.tally.done else ""
        )
        if not refused:
            return f"{self.executor.place}: no worker has come in {self.patience:.0f} s; start some, and then the same command again{done}"
        worker = refused[-1]
        others = f" ({many(len(refused), 'worker')} like it)" if len(refused) > 1 else ""
        name = f"{worker.name}{f' on {worker.host}' if worker.host else ''}"
        return f"{self.executor.place}: no worker can build: {name} is {worker.state}: {worker.reason}{others}{done}"

    def _say_goodbye(self) -> None:
        """Have workers let go of the last program and of their folders. Who is slow in that is not waited for."""
        for worker in self._workers.values():
            if worker.state == "fit" and not worker.busy:
                self._give(worker, {"kind": "end"})
        until = time.monotonic() + GOODBYE_SECONDS
        while any(worker.busy for worker in self._workers.values()) and time.monotonic() < until:
            for heard in self.executor.hear(LOOK_SECONDS):
                self._workers[heard.worker].busy = False

    # -- dealing

    def _deal(self) -> None:
        idle = [worker for worker in self._workers.values() if worker.state == "fit" and not worker.busy]
        choices: list[Callable[[Worker], Task | None]] = [lambda worker: self.lines.own(worker.program), lambda _: self.lines.other()]
        for choose in choices:
            for worker in idle:
                if not worker.busy and (task := choose(worker)) is not None:
                    self._begin_task(worker, task)

    def _begin_task(self, worker: Worker, task: Task) -> None:
        worker.task = task
        worker.first = self.clock() if worker.first is None else worker.first
        self._tries[task] += 1
        self.ledger.began(worker.name, task)
        what = {"kind": "build" if task.number else "load", "program": task.program, "number": task.number, "target": task.target}
        program = self.programs[task.program]
        needed = [path for path in program.recorded if Path(path).exists()]
        self._give(worker, {**what, "spec": plain_spec(program), "needed": needed})

    def _give(self, worker: Worker, what: Job) -> None:
        worker.busy, worker.since = True, self.clock()
        shared = sum(1 for other in self._workers.values() if other.host == worker.host and other.state == "fit")
        wanted = asked()
        known = {
            "provenance": wanted.to_data() if wanted is not None else None,
            "build": self._build,
            "versions": versions(),
            "store": str(self.store.root),
            "mark": self._mark,
            "shared_by": shared,
        }
        remotes = [asdict(setting) for setting in self.remotes]
        self.executor.give(worker.name, {**known, "remotes": remotes, "path": list(self.path), **what})

    # -- listening

    def _hear(self, heard: Heard) -> None:
        worker = self._workers[heard.worker]
        task, worker.task, worker.busy = worker.task, None, False
        worker.last = self.clock()
        if task is not None:
            worker.seconds = round(worker.seconds + worker.last - worker.since, 3)
            worker.own = round(worker.own + (heard.answer or {}).get("busy", 0.0), 3)
        self.ledger.tally.idle(worker.name)
        if heard.answer is None:
            self._without_answer(worker, task, heard)
            return
        getattr(self, f"_hear_{heard.answer['kind']}")(worker, task, heard.answer)

    def _without_answer(self, worker: Worker, task: Task | None, heard: Heard) -> None:
        if worker.state == "new":
            self._lost_at_probe += 1
        worker.state, worker.reason = ("lost", heard.lost) if heard.lost else ("refused", f"it cannot run jobs: {heard.broken}")
        self.ledger.display.warn(f"{worker.name}: {worker.reason}")
        if self._lost_at_probe >= PROBES and not any(other.state == "fit" for other in self._workers.values()):
            raise Stopped(self._why_nobody(), usage=False)
        if task is not None:
            self._again(task, worker.reason)

    def _again(self, task: Task, why: str) -> None:
        """The task's worker was lost: it is run again, unless it may be what loses workers."""
        if self._tries[task] > self.retries:
            times = many(self._tries[task], "worker")
            memory = "; was there too little memory? Give each worker more, or have fewer on a machine"
            self.ledger.fail(task, f"{times} were lost while building it, the last: {why}{memory}")
            return
        self.ledger.tally.again += 1
        self.lines.again(task)

    def _hear_fit(self, worker: Worker, _: Task | None, answer: Mapping[str, Any]) -> None:
        worker.state, worker.host, self._lost_at_probe = "fit", answer["host"], 0

    def _hear_unfit(self, worker: Worker, task: Task | None, answer: Mapping[str, Any]) -> None:
        worker.state, worker.reason = "refused", answer["text"]
        self.ledger.display.warn(f"worker {worker.name} is refused: {answer['text']}")
        if task is not None:
            self._again(task, answer["text"])

    def _hear_loaded(self, worker: Worker, task: Task | None, answer: Mapping[str, Any]) -> None:
        assert task is not None
        worker.program = task.program
        self.ledger.loaded(task.program, Known(answer["count"], answer["key"], answer["seconds"]))

    def _hear_built(self, worker: Worker, task: Task | None, answer: Mapping[str, Any]) -> None:
        assert task is not None
        worker.program, worker.jobs = task.program, worker.jobs + 1
        self.ledger.note(task, Outcome(**answer["outcome"]))

    def _hear_failed(self, worker: Worker, task: Task | None, answer: Mapping[str, Any]) -> None:
        """The program's factory failed: at its first call, or later on a worker that took some of its signatures."""
        assert task is not None
        self.ledger.fail(task, answer["text"])

    def _hear_stopped(self, worker: Worker, task: Task | None, answer: Mapping[str, Any]) -> None:
        raise Stopped(answer["text"], answer["usage"])


def refuse_secrets(setting: Setting) -> None:
    """Raises Stopped where a remote's URL holds what looks like a secret: jobs pass through the engine, and are shown by it."""
    parts = urlsplit(setting.url)
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if _SECRET.search(name)]
    if "@" in parts.netloc or names:
        what = f"its setting {names[0]!r}" if names else "a user or a password"
        raise Stopped(
            f"{setting.where}: the URL of {parts.scheme}://{parts.hostname} holds {what}, and whoever reaches a farm's "
            "scheduler can read its jobs: leave it away, and set credentials in the environment of the workers",
            usage=True,
        )


def plain_spec(spec: ProgramSpec) -> dict[str, Any]:
    """A program as a job holds it: plain data, of which a build file is made anyway."""
    return {**asdict(spec), "targets": list(spec.targets), "recorded": list(spec.recorded)}
