"""How far a build is: what each worker does, how much is done and how fast, for the display of `precast build`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

WINDOW = 200
"""The rate is that of so many endings at most."""
WINDOW_SECONDS = 60.0
"""… and of no more than the last minute, unless fewer than three ended in it."""


@dataclass(frozen=True)
class Doing:
    """What a worker does, and since when by the tally's clock."""

    what: str
    since: float


class Tally:
    """The state of a build. `total` may grow: how many signatures a program has is known when its factory has been called."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.done = self.failed = self.again = 0
        self.doing: dict[str, Doing] = {}
        self.clock = clock
        self._ends: deque[float] = deque(maxlen=WINDOW)
        self._begin = clock()

    def began(self, worker: str, what: str) -> None:
        self.doing[worker] = Doing(what, self.clock())

    def idle(self, worker: str) -> None:
        """The worker has nothing to do, or is gone."""
        self.doing.pop(worker, None)

    def ended(self, good: bool) -> None:
        """One signature is built, or has failed for good."""
        self.done += 1
        self.failed += not good
        self.total = max(self.total, self.done)
        self._ends.append(self.clock())

    @property
    def seconds(self) -> float:
        """Since the build began."""
        return self.clock() - self._begin

    @property
    def rate(self) -> float:
        """Signatures that end in a second, of late; 0.0 where nothing has."""
        while len(self._ends) > 2 and self.clock() - self._ends[0] > WINDOW_SECONDS:
            self._ends.popleft()
        if not self._ends:
            return 0.0
        whole = self.done == len(self._ends)
        span = self.clock() - (self._begin if whole else self._ends[0])
        return (len(self._ends) - (not whole)) / span if span > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds until the end at this rate; None where there is no rate yet."""
        return (self.total - self.done) / rate if (rate := self.rate) else None

    def __str__(self) -> str:
        parts = [f"{self.done} of {self.total}", f"{self.failed} failed"]
        if self.again:
            parts.append(f"{self.again} run again")
        if (rate := self.rate) > 0:
            parts.append(f"{rate:.1f} a second" if rate >= 1 else f"{60 * rate:.1f} a minute")
        if (left := self.left) is not None and self.done < self.total:
            parts.append(f"about {span(left)} left")
        return ", ".join(parts)


def span(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Display(Protocol):
    """Shows the progress of a build."""

    def note(self, line: str) -> None:
        """An event, for a log; where the tally is drawn, it says the same."""

    def warn(self, line: str) -> None:
        """Something that is to be seen in any case."""

    def show(self, tally: Tally) -> None:
        """The state now. Called often."""
