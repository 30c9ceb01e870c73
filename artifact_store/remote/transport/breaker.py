"""A circuit breaker: an endpoint that failed several times in a row is left alone for a while, and then asked once.

closed      every request goes out
open        none does until `until`: the caller hears at once why
half-open   one request has gone out to see; the others are answered as when open
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Literal, NamedTuple
from weakref import WeakSet

log = logging.getLogger("precast.store")

FAILURES = 3
"""So many failures in a row open it."""
OPEN_SECONDS = 15.0
"""For how long it is open the first time; each failure of the request that looks again doubles this."""
LONGEST_SECONDS = 300.0
PROBE_SECONDS = 120.0
"""A request that was to look again and never came back counts as failed after this time."""

_all: WeakSet[Breaker] = WeakSet()


class State(NamedTuple):
    """What it does at the moment; `until` in seconds since 1970 where it is open; `reason` the last failure."""

    name: Literal["closed", "open", "half-open"]
    until: float | None
    reason: str

    def __str__(self) -> str:
        if self.name == "closed":
            return "closed"
        when = "" if self.until is None else time.strftime(" until %H:%M:%S", time.localtime(self.until))
        return f"{self.name}{when}: {self.reason}"


class Breaker:
    """The breaker of one endpoint, named by `place` in the log; safe to use from several threads."""

    def __init__(self, place: str, failures: int = FAILURES, open_seconds: float = OPEN_SECONDS) -> None:
        self._place, self._limit, self._first = place, failures, open_seconds
        self._lock = threading.Lock()
        self._failures = 0
        self._reason = ""
        self._seconds = open_seconds
        self._until: float | None = None  # of time.monotonic: set while it is not closed
        self._probe: float | None = None
        self.opened = 0
        _all.add(self)

    def admit(self) -> bool:
        """Whether a request may go out. One that may, and was let through to look again, has to report by `succeeded` or `failed`."""
        now = time.monotonic()
        with self._lock:
            if self._until is None:
                return True
            if now < self._until or (self._probe is not None and now < self._probe + PROBE_SECONDS):
                return False
            self._probe = now
            return True

    def succeeded(self) -> None:
        """The endpoint answered as it should, if only that something is not there."""
        with self._lock:
            was_open = self._until is not None
            self._failures, self._until, self._probe, self._seconds = 0, None, None, self._first
        if was_open:
            log.info("%s answers again", self._place)

    def failed(self, reason: str) -> None:
        """It did not."""
        with self._lock:
            self._failures += 1
            self._reason = reason
            looked = self._probe is not None
            if self._until is None and self._failures < self._limit:
                return
            if self._until is not None and not looked:
                return  # a request that went out before it opened
            if looked:
                self._seconds = min(self._seconds * 2, LONGEST_SECONDS)
            self._open(self._seconds)
            seconds = self._seconds
        log.warning("%s is not asked for %.0f s, and what it has counts as absent: %s", self._place, seconds, reason)

    def hold(self, seconds: float, reason: str) -> None:
        """Ask nothing for so long: the endpoint said so itself."""
        with self._lock:
            self._reason = reason
            self._open(min(seconds, LONGEST_SECONDS))
        log.info("%s is not asked for %.0f s, as it wants: %s", self._place, min(seconds, LONGEST_SECONDS), reason)

    def _open(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._probe = None
        self.opened += 1

    @property
    def state(self) -> State:
        """What it does at the moment."""
        now = time.monotonic()
        with self._lock:
            if self._until is None:
                return State("closed", None, self._reason)
            if now < self._until:
                return State("open", time.time() + self._until - now, self._reason)
            return State("half-open", None, self._reason)


def _after_fork() -> None:
    for each in list(_all):
        each._lock = threading.Lock()
        each._probe = None


os.register_at_fork(after_in_child=_after_fork)
