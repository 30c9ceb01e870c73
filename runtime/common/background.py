"""Background compilation: `options={"background_compile": True}`.

A call that misses is captured in its own thread, so that guards and graph are those of that call and of the thread's state; the rest
(lowering, code generation, the compiler) runs in one background thread. Calls that pass the captured guards run eagerly meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from precast.runtime.common.errors import Deferred
from precast.runtime.common.log import logger


@dataclass(frozen=True)
class Job:
    """`abandon` is called instead of `run` in a forked child, which has no background thread."""

    run: Callable[[], None]
    abandon: Callable[[], None]


class _Worker:
    """Runs jobs in order of arrival in a thread that ends when there are none; the interpreter waits for it at exit.

    What a job raises (a warning that is an error, `sys.exit` in code that is imported) is logged, and the next job has its turn.
    """

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()
        self.change = threading.Condition()
        self.thread: threading.Thread | None = None

    def submit(self, job: Job) -> bool:
        with self.change:
            if self.thread is None:
                thread = threading.Thread(target=self._work, name="precast-background-compile")
                try:
                    thread.start()
                except RuntimeError as error:
                    logger("compile").warning("compiling where the call stands, not in the background: %s", error)
                    return False
                self.thread = thread
            self.jobs.append(job)
            return True

    def _work(self) -> None:
        while True:
            with self.change:
                if not self.jobs:
                    self.thread = None
                    self.change.notify_all()
                    return
                job = self.jobs[0]
            try:
                job.run()
            except BaseException:  # noqa: BLE001 - nobody is there to catch it, and others wait
                logger("compile").error("a compile in the background ended in an error", exc_info=True)
            with self.change:
                self.jobs.popleft()

    def wait(self, timeout: float | None) -> bool:
        with self.change:
            return self.change.wait_for(lambda: self.thread is None, timeout)


_worker = _Worker()


def submit(job: Job) -> None:
    """Run `job` in the background, after those that wait already; where no thread can be started, here."""
    if not _worker.submit(job):
        job.run()


def wait(timeout: float | None = None) -> bool:
    """Wait until nothing compiles in the background; False when `timeout` seconds passed first."""
    return _worker.wait(timeout)


def _forget_in_child() -> None:
    global _worker
    jobs = list(_worker.jobs)
    _worker = _Worker()
    for job in jobs:
        job.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

__all__ = ["Deferred", "Job", "submit", "wait"]
