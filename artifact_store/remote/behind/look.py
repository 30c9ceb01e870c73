"""One look at all remotes for what they have of a program: asked in threads, while a call waits for a stated time at most."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from precast.artifact_store.remote.program_index import Entry
from precast.artifact_store.remote.remote import Remote

Source = tuple[Remote, Entry]
"""A remote, and what its index says of an artifact."""


class Look:
    """The state of a look. Threads report by `landed`, `said` and `ended`; a call waits by `news`.

    `sayings`: place -> sentence, what a remote said where it did not simply have nothing; `failures`: place -> what it failed with;
    `unsuitable`: place -> what it has and this machine cannot use, where it has nothing else.
    """

    def __init__(self, program_key: str, tiers: tuple[Remote, ...]) -> None:
        self.program_key = program_key
        self.began = time.monotonic()
        self.over_since: float | None = None
        self.sayings: dict[str, str] = {}
        self.failures: dict[str, Exception] = {}
        self.unsuitable: dict[str, tuple[Entry, ...]] = {}
        self._running: dict[Remote, int] = dict.fromkeys(tiers, 0)
        self._landed = 0
        self._busy: set[str] = set()  # what is here, or on its way
        self._others: dict[str, list[Source]] = {}  # who else has it
        self._changed = threading.Condition()

    @property
    def is_over(self) -> bool:
        return self.over_since is not None

    @property
    def found(self) -> int:
        """How many artifacts and records it brought."""
        return self._landed

    def __str__(self) -> str:
        """What came of it, for people: the end of a sentence for each remote."""
        with self._changed:
            said = dict(self.sayings)
            for tier, running in self._running.items():
                if running:
                    took = time.monotonic() - self.began
                    said.setdefault(tier.place, f"{tier.place} has not answered in full after {took:.1f} s, and is still asked")
                else:
                    said.setdefault(tier.place, f"{tier.place} was asked")
        return "; ".join(said[tier.place] for tier in self._running)

    # -- for threads

    def begin(self, tier: Remote) -> None:
        """A thread is about to ask this remote."""
        with self._changed:
            self._running[tier] += 1

    def end(self, tier: Remote) -> None:
        """It is done with that."""
        with self._changed:
            self._running[tier] -= 1
            if not any(self._running.values()):
                self.over_since = time.monotonic()
            self._changed.notify_all()

    def offer(self, name: str, source: Source) -> Source | None:
        """`source` has this artifact. It comes back where it is to be fetched from there now; None where it is here, or on its way:
        then the offer is kept, in case that fails.
        """
        with self._changed:
            if name in self._busy:
                self._others.setdefault(name, []).append(source)
                return None
            self._busy.add(name)
            return source

    def failed(self, name: str) -> Source | None:
        """It could not be fetched. Where to try next; None where nobody else was found to have it."""
        with self._changed:
            if others := self._others.get(name):
                return others.pop(0)
            self._busy.discard(name)
            return None

    def landed(self) -> None:
        """Something is in the local store now."""
        with self._changed:
            self._landed += 1
            self._changed.notify_all()

    def say(self, tier: Remote, text: str) -> None:
        """What this remote said, as a sentence's end that begins with its place."""
        with self._changed:
            self.sayings[tier.place] = text

    # -- for calls

    def is_asking(self, tier: Remote) -> bool:
        """Whether a thread still asks this remote."""
        return bool(self._running.get(tier))

    def news(self, seconds: dict[Remote, float]) -> Iterator[None]:
        """Yields whenever something landed, at the end once more; until nothing is asked any more, or every remote that is has had its
        seconds.
        """
        began, seen = time.monotonic(), 0
        while True:
            with self._changed:
                while True:
                    running = [tier for tier, count in self._running.items() if count]
                    left = max((seconds.get(tier, 0.0) for tier in running), default=0.0) - (time.monotonic() - began)
                    if self._landed > seen or left <= 0:
                        break
                    self._changed.wait(left)
                news, seen = self._landed > seen, self._landed
            if news:
                yield
            elif left <= 0:
                return


__all__ = ["Look"]
