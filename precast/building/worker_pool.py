"""The worker pool of `precast build --jobs`: workers are forked from a process that has imported the compiler, and build many signatures
each.

The parent has no threads and hands out one signature at a time (`build_order.py`), so that it knows what a worker was building when it
died. Each worker leads a process group of its own: an interrupt on the terminal reaches the parent only, which ends all workers and the
compilers that they have started.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from precast.artifact_store import Store, StoreError
from precast.building import usable
from precast.building.build_file import Loaded, ProgramSpec
from precast.building.build_job import Job, Outcome
from precast.building.build_order import Known, Lines, Task
from precast.building.ledger import Ledger, Stopped
from precast.building.update_job import job_of
from precast.compiling.exclusive import part
from precast.runtime.common.errors import CompilerBroken, OptionError, StoreUnwritable
from precast.runtime.common.log import logger
from precast.runtime.common.upward_imports import COMPILE_VARIANT
from precast.runtime.native import loader

LOOK_SECONDS = 0.1
"""Seconds between updates of the display."""
SPARE_BYTES = 1 << 30
"""Bytes of memory that stay free where precast chooses the number of workers."""
LEAST_LINES = 4
"""Number of programs times targets from which on several workers are the default."""

Load = Callable[[ProgramSpec], Loaded]


class FactoryFailed(Exception):
    """Raised by a `Load` for a program whose factory failed."""


@dataclass
class Crew:
    """The limit on workers: `most`, and where precast chooses also by free memory."""

    most: int
    chosen_by_user: bool
    largest: int = 0

    @classmethod
    def of(cls, jobs: int | None, lines: Lines) -> Crew:
        """The limit for `--jobs N`, or the default, which is one worker for small builds."""
        if not hasattr(os, "fork"):
            return cls(1, jobs is not None)
        if jobs is not None:
            return cls(jobs, True)
        return cls(max(1, min(usable.cores(), len(lines) // 2)) if len(lines) >= LEAST_LINES else 1, False)

    def admits(self, workers: int) -> bool:
        """Whether one more worker may be begun beside so many."""
        if workers == 0 or workers >= self.most or self.chosen_by_user:
            return workers < self.most
        return self.largest > 0 and usable.free_memory() >= 2 * self.largest + SPARE_BYTES


@dataclass(eq=False)
class Worker:
    """A worker process and its current task."""

    process: BaseProcess
    connection: Connection
    task: Task | None = None
    since: float = 0.0
    program: int | None = None

    @property
    def name(self) -> str:
        """As the display calls it."""
        return f"process {self.process.pid}"

    def signal(self, number: int) -> None:
        """Sends a signal to the worker and to all processes that it has started: compilers have process groups of their own."""
        pid = self.process.pid or 0
        _send(pid, signal.SIGSTOP)  # nothing is started while it is looked who is there
        for child in _descendants(pid):
            _send(child, number)
        _send(pid, number)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The descendants of a process, as far as the system tells."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                found += [child, *_descendants(child)]
    return found


@dataclass
class Pool:
    """One build by several workers. `ends`: a factory that fails ends the build; else its program is reported as failed."""

    programs: Sequence[ProgramSpec]
    store: Store
    load: Load
    ledger: Ledger
    lines: Lines
    crew: Crew
    ends: bool
    _workers: list[Worker] = field(default_factory=list)
    _speaker: Worker | None = None

    def run(self) -> list[Outcome]:
        """Build everything; returns the outcomes in the order of the file. Raises Stopped."""
        self._show()
        if not self.store.programs():  # so that all will be compiled
            prepare(self.store)
        try:
            while self._deal() or any(worker.task for worker in self._workers):
                self._listen()
            assert self.lines.finished, "signatures wait for one another"
        finally:
            for worker in self._workers:
                worker.signal(signal.SIGKILL)
                worker.process.join()
        return self.ledger.outcomes()

    def _show(self) -> None:
        self.ledger.display.show(self.ledger.tally)

    # -- dealing

    def _deal(self) -> bool:
        """Give tasks to idle workers, unless one is measuring. Returns whether there was a task."""
        if self._speaker is not None:
            return False
        dealt = False
        choices: list[Callable[[Worker], Task | None]] = [lambda worker: self.lines.own(worker.program), lambda _: self.lines.other()]
        for choose in choices:
            for worker in self._workers:
                if worker.task is None and (task := choose(worker)) is not None:
                    self._give(worker, task)
                    dealt = True
        while self.crew.admits(len(self._workers)) and (task := self.lines.other()) is not None:
            self._give(self._begin(), task)
            dealt = True
        return dealt

    def _give(self, worker: Worker, task: Task) -> None:
        worker.task, worker.since = task, time.perf_counter()
        self.ledger.began(worker.name, task)
        with contextlib.suppress(OSError):  # it died: its end is heard of next
            worker.connection.send(task)

    def _begin(self) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        inherited = [ours, *(worker.connection for worker in self._workers)]
        context = multiprocessing.get_context("fork")
        given = (theirs, inherited, self.programs, self.store, self.load, min(self.crew.most, len(self.lines)))
        process = context.Process(target=_work, args=given, name="precast-build")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of BLAS's threads, which are made anew in the child
            process.start()
        with contextlib.suppress(OSError):
            os.setpgid(process.pid or 0, process.pid or 0)
        theirs.close()
        self._workers.append(Worker(process, ours))
        return self._workers[-1]

    # -- listening

    def _listen(self) -> None:
        """Receive messages of workers, waiting a moment if there are none. While one measures, the others are stopped between messages."""
        heard = self._workers if self._speaker is None else [self._speaker]
        by_connection: dict[Any, Worker] = {worker.connection: worker for worker in heard}
        for connection in wait([*by_connection], LOOK_SECONDS):
            self._hear(by_connection[connection])
            if self._speaker is not None:
                break
        self._show()

    def _hear(self, worker: Worker) -> None:
        try:
            kind, *given = worker.connection.recv()
        except (EOFError, OSError):
            self._died(worker)
            return
        getattr(self, f"_hear_{kind}")(worker, *given)

    def _hear_loaded(self, worker: Worker, count: int, key: str, memory: int) -> None:
        task = self._end(worker, memory)
        worker.program = task.program
        self.ledger.loaded(task.program, Known(count, key, time.perf_counter() - worker.since))

    def _hear_built(self, worker: Worker, outcome: Outcome, memory: int) -> None:
        task = self._end(worker, memory)
        worker.program = task.program
        self.ledger.note(task, outcome)

    def _hear_failed(self, worker: Worker, text: str) -> None:
        """The program's factory failed."""
        if self.ends:
            raise Stopped(text, usage=False)
        worker.program = None
        self.ledger.fail(self._end(worker), text)

    def _hear_stopped(self, worker: Worker, text: str, usage: bool) -> None:
        raise Stopped(text, usage)

    def _hear_quiet(self, worker: Worker) -> None:
        """The worker is about to measure: the others are stopped."""
        self._speaker = worker
        self._tell_others(signal.SIGSTOP)
        with contextlib.suppress(OSError):  # it died: its end is heard of next
            worker.connection.send(None)

    def _hear_loud(self, worker: Worker) -> None:
        self._tell_others(signal.SIGCONT)
        self._speaker = None

    def _tell_others(self, number: int) -> None:
        for other in self._workers:
            if other is not self._speaker:
                other.signal(number)

    def _died(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.signal(signal.SIGKILL)  # the compiler that it may have left behind
        worker.process.join()
        if worker is self._speaker:
            self._hear_loud(worker)
        if worker.task is not None:
            self.ledger.fail(self._end(worker), _how_it_died(worker.process.exitcode))

    # -- noting

    def _end(self, worker: Worker, memory: int = 0) -> Task:
        assert worker.task is not None
        task, worker.task = worker.task, None
        self.ledger.tally.idle(worker.name)
        self.crew.largest = max(self.crew.largest, memory)
        return task


def _how_it_died(code: int | None) -> str:
    if code is not None and code < 0:
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        memory = "; was there too little memory? Give fewer --jobs" if -code == signal.SIGKILL else ""
        return f"the process that built it was ended by {name}{memory}"
    return f"the process that built it ended with status {code}"


def prepare(store: Store) -> None:
    """Does once what each worker would do at its first compile: build the native runtime and import the compiler, side by side."""
    try:
        store.check_writable()
    except StoreError:
        return  # the first worker says so
    with ThreadPoolExecutor(1) as pool:  # whose thread has ended before anything is forked
        built = pool.submit(loader.ensure, store)
        COMPILE_VARIANT.load()
    if (error := built.exception()) is not None:
        logger("runtime").error("building the native runtime failed", exc_info=error)


# -- in the worker


def _work(
    connection: Connection, inherited: Sequence[Connection], programs: Sequence[ProgramSpec], store: Store, load: Load, shared_by: int
) -> None:
    """The body of a worker: builds the tasks that it receives, until the parent is gone."""
    for other in inherited:
        other.close()
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
        os.dup2(2, 1)  # what factories print is none of the report
    sys.stdout = sys.stderr
    part.alone, part.shared_by = lambda: _alone(connection), shared_by
    job: tuple[int, Job] | None = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            task: Task = connection.recv()
            if job is None or job[0] != task.program:
                job = None  # its memory first
            answer, made = _answer(task, programs[task.program], store, load, job[1] if job is not None else None)
            job = (task.program, made) if made is not None else None
            connection.send(answer)


def _answer(task: Task, program: ProgramSpec, store: Store, load: Load, job: Job | None) -> tuple[tuple[Any, ...], Job | None]:
    try:
        job = job_of(load(program), store) if job is None else job
        if task.number == 0:
            return ("loaded", len(job.loaded.signatures), job.key(task.target), usable.peak_memory()), job
        return ("built", job.build(task.number, task.target), usable.peak_memory()), job
    except FactoryFailed as error:
        return ("failed", str(error)), None
    except OptionError as error:
        return ("stopped", f"{program.where}: {error}", True), None
    except Stopped as error:
        return ("stopped", str(error), error.usage), None
    except (StoreUnwritable, CompilerBroken) as error:
        return ("stopped", str(error), False), None


@contextlib.contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    connection.send(("quiet",))
    connection.recv()
    try:
        yield
    finally:
        connection.send(("loud",))
