"""Locks by name, for what several threads would otherwise do twice at the same time."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class KeyedLocks:
    """`with locks(name):` one thread at a time for each name; a name that nobody holds takes no memory."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._users: dict[str, int] = defaultdict(int)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        with self._guard:
            lock = self._locks[name]
            self._users[name] += 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name], self._locks[name]
