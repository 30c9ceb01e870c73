"""A few threads for requests: started when needed, gone when idle, never waited for at exit, begun anew in a child after a fork.

`concurrent.futures` has none like this: its threads are joined when the interpreter ends, so a request that hangs would hold the process.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from weakref import WeakSet

T = TypeVar("T")
IDLE_SECONDS = 10.0
"""How long a thread waits for its next task before it ends."""
MOST = 4
"""How many times `size` threads there are at most, where tasks are overdue: stuck in a filesystem or a resolver that does not answer."""

_here = threading.local()
_all: WeakSet[RequestThreads] = WeakSet()


class PoolClosed(RuntimeError):
    """A task was given to threads that were closed."""


class RequestThreads:
    """At most `size` tasks at a time, not counting those that run for more than `overdue` seconds."""

    def __init__(self, size: int, overdue: float, name: str) -> None:
        self._size, self._overdue, self._name = size, overdue, name
        self._begin()
        _all.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running: dict[int, float] = {}
        self._threads = self._idle = self._numbers = 0
        self._closed = False

    def start(self, task: Callable[[], T]) -> Future[T]:
        """Run `task` in a thread. A task of this pool that starts another one runs it itself: it would hold a thread while it waits.
        Raises PoolClosed after `close`.
        """
        future: Future[T] = Future()
        if getattr(_here, "pool", None) is self:
            _run(future, task)
            return future
        with self._changed:
            if self._closed:
                raise PoolClosed(f"the threads {self._name} were closed")
            self._tasks.append((future, task))
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif self._threads < min(self._size + self._count_overdue(), MOST * self._size):
                self._numbers += 1
                # a thread that cannot be started leaves the task to those that run; the first one has to
                thread = threading.Thread(target=self._work, name=f"{self._name}-{self._numbers}", daemon=True)
                self._threads += 1
                try:
                    thread.start()
                except RuntimeError:
                    self._threads -= 1
                    if not self._threads:
                        self._tasks.pop()
                        raise
        return future

    def longest(self) -> float:
        """For how many seconds the oldest of the running tasks has been running."""
        with self._changed:
            return time.monotonic() - min(self._running.values(), default=time.monotonic())

    def overdue(self) -> int:
        """How many tasks run for longer than any request may."""
        with self._changed:
            return self._count_overdue()

    def close(self) -> None:
        """Start nothing any more; what runs is left alone, what waits is cancelled."""
        with self._changed:
            self._closed = True
            for future, _ in self._tasks:
                future.cancel()
            self._tasks.clear()
            self._changed.notify_all()

    def _count_overdue(self) -> int:
        late = time.monotonic() - self._overdue
        return sum(begun < late for begun in self._running.values())

    def _work(self) -> None:
        _here.pool = self
        me = threading.get_ident()
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._tasks or self._closed, IDLE_SECONDS)
                self._idle -= 1
                if not self._tasks:
                    self._threads -= 1
                    return
                future, task = self._tasks.popleft()
                self._running[me] = time.monotonic()
            _run(future, task)
            del future, task
            with self._changed:
                del self._running[me]


def _run(future: Future[T], task: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = task()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)
    else:
        future.set_result(result)


def _after_fork() -> None:
    _here.__dict__.clear()
    for each in list(_all):
        each._begin()


os.register_at_fork(after_in_child=_after_fork)
