"""What was asked of an endpoint in this process, for `stats` and `doctor`."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field, fields
from typing import Any
from weakref import WeakSet


@dataclass
class Counters:
    """`requests` by verb, retries among them; `failures` by kind of error; `unasked`: not sent since the breaker was open; `late`: given up
    by a caller whose time was over. `seconds` is the time of all requests together, `slowest` that of the slowest.
    """

    requests: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    retries: int = 0
    unasked: int = 0
    late: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    last_failure: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        _all.add(self)

    __hash__ = object.__hash__

    def request(self, verb: str, seconds: float, sent: int, received: int, failure: str = "", reason: str = "") -> None:
        """One request that ended; `failure` is the name of the error's class."""
        with self._lock:
            self.requests[verb] = self.requests.get(verb, 0) + 1
            self.seconds += seconds
            self.slowest = max(self.slowest, seconds)
            self.bytes_sent += sent
            self.bytes_received += received
            if failure:
                self.failures[failure] = self.failures.get(failure, 0) + 1
                self.last_failure = reason

    def add(self, name: str) -> None:
        """One more of `retries`, `unasked` or `late`."""
        with self._lock:
            setattr(self, name, getattr(self, name) + 1)

    def snapshot(self) -> dict[str, Any]:
        """All of it at one moment, as plain data."""
        with self._lock:
            return {each.name: dict(value) if isinstance(value := getattr(self, each.name), dict) else value for each in fields(self)}


_all: WeakSet[Counters] = WeakSet()


def _after_fork() -> None:
    for each in list(_all):
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
