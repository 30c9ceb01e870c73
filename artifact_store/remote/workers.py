"""Threads for what is done in parallel with a remote: a few, started when there is work, that end when there is none.

They are daemons, so that they never keep the interpreter from ending, and a forked child begins with none. Whoever waits for work does some
of it, so that work may hand out work of its own.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

log = logging.getLogger("precast.store")

IDLE = 5.0
"""Seconds after which a thread without work ends."""
Result = TypeVar("Result")
Task = Callable[[], None]


class Workers:
    """At most `limit` threads."""

    def __init__(self, limit: int = 16, name: str = "precast-remote") -> None:
        self._limit = limit
        self._name = name
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        self._wake = threading.Condition()
        self._tasks: deque[Task] = deque()
        self._threads = self._idle = 0

    def submit(self, task: Task) -> None:
        """Have `task` run soon, by some thread; what it raises is logged."""
        with self._wake:
            self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._wake.notify()
                return
            if self._threads >= self._limit:
                return
            self._threads += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError as error:  # the interpreter ends, or the system has no threads left
            with self._wake:
                self._threads -= 1
            log.info("no thread for a remote could be started: %s", error)

    def run(self, jobs: Sequence[Callable[[], Result]]) -> list[Result]:
        """What each job returns, in order. The first that raises ends it: its error is raised once those that were begun have ended."""
        if len(jobs) <= 1:
            return [job() for job in jobs]
        batch = _Batch(jobs)
        for _ in range(min(len(jobs) - 1, self._limit)):
            self.submit(batch.help)
        batch.help()
        return batch.results()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._tasks:
                    self._idle += 1
                    woken = self._wake.wait(IDLE)
                    self._idle -= 1
                    if not woken and not self._tasks:
                        self._threads -= 1
                        return
                task = self._tasks.popleft()
            try:
                task()
            except Exception:
                log.exception("work for a remote failed, which is a bug of precast")


class _Batch(Generic[Result]):
    """Jobs of one `run`, of which every helper takes the next until none is left."""

    def __init__(self, jobs: Sequence[Callable[[], Result]]) -> None:
        self._jobs = jobs
        self._results: dict[int, Result] = {}
        self._errors: list[BaseException] = []
        self._next = self._running = 0
        self._changed = threading.Condition()

    def help(self) -> None:
        while True:
            with self._changed:
                if self._next >= len(self._jobs) or self._errors:
                    return
                number = self._next
                self._next += 1
                self._running += 1
            try:
                result = self._jobs[number]()
                with self._changed:
                    self._results[number] = result
            except BaseException as error:  # noqa: BLE001 - raised again by `results`
                with self._changed:
                    self._errors.append(error)
            finally:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def results(self) -> list[Result]:
        with self._changed:
            while self._running:
                self._changed.wait()
            if self._errors:
                raise self._errors[0]
            return [self._results[number] for number in range(len(self._jobs))]


_renewals: list[weakref.WeakMethod[Task]] = []


def after_fork(method: Task) -> None:
    """Have `method`, a bound one, called in every forked child, for as long as its object lives."""
    _renewals[:] = [other for other in _renewals if other() is not None]
    _renewals.append(weakref.WeakMethod(method))


def _renew() -> None:
    for method in [reference() for reference in _renewals]:
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

__all__ = ["Workers", "after_fork"]
