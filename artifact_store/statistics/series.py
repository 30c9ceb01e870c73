"""What is counted: a closed list of figures, each a sum that only grows, told apart by program, tier and reason.

`ledger_of(place)` is what this process has counted for the store at that place; whoever counts adds to it. Nothing here touches a disk.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple


class Series(NamedTuple):
    """One sum. `program`: a program key; `tier`: "local", or the URL of a remote; `reason`: a cause, or why something is bypassed;
    `detail`: the kind of guard, the library version …; `outcome`: what became of it.
    """

    figure: str
    program: str = ""
    tier: str = ""
    reason: str = ""
    detail: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Figure:
    """`unit`: "seconds", "bytes" or nothing; `help`: a sentence."""

    help: str
    unit: str = ""


FIGURES: dict[str, Figure] = {
    "calls": Figure("Calls that compiled code served, those that were compiled for just then included."),
    "misses": Figure("Calls that no artifact served at first, by cause and outcome."),
    "loads": Figure("Artifacts that a process was first served by, and had not compiled itself."),
    "load_bytes": Figure("Bytes of the blobs of those artifacts.", "bytes"),
    "saved_seconds": Figure("Seconds that compiling those artifacts had taken where they were made.", "seconds"),
    "compiles": Figure("Compilations that came to an end, by outcome."),
    "compile_seconds": Figure("Seconds spent in them.", "seconds"),
    "store_bytes": Figure("Bytes of the blobs of artifacts that were compiled and stored.", "bytes"),
    "wait_seconds": Figure("Seconds that calls waited for another process's compile.", "seconds"),
    "bypasses": Figure("Attempts to compile what could not be stored or not be compiled, by reason."),
    "lost_seconds": Figure("Seconds spent on them.", "seconds"),
    "bypassed_calls": Figure("Calls that ran eagerly, or from this process only, for such a reason."),
    "fetches": Figure("Artifacts that were fetched from a remote tier."),
    "fetch_bytes": Figure("Bytes that were fetched from a remote tier.", "bytes"),
    "fetch_seconds": Figure("Seconds that fetching them took.", "seconds"),
    "fetch_failures": Figure("Requests to a remote tier that failed, by reason."),
    "uploads": Figure("Artifacts that were sent to a remote tier."),
    "upload_bytes": Figure("Bytes that were sent to a remote tier.", "bytes"),
}
"""By name. What a newer precast counts beside these is kept in the files, and not shown by this one."""

LONGEST = 300
"""Characters of a reason or a detail that are kept."""
MOST = 4000
"""Different series of one store in one process: from then on reasons and details are left out, so that the count stays right."""


class Ledger:
    """Sums of one process for one store. Safe to use from several threads. `names`: program key -> the program's name, for people."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[Series, float] = {}
        self._written: dict[Series, float] = {}
        self.names: dict[str, str] = {}

    def add(
        self, figure: str, value: float = 1, *, program: str = "", tier: str = "", reason: str = "", detail: str = "", outcome: str = ""
    ) -> None:
        """Add to one sum. Raises ValueError for a figure that is not in the list."""
        if figure not in FIGURES:
            raise ValueError(f"nothing is counted under the name {figure!r}; known: {', '.join(FIGURES)}")
        series = Series(figure, program, tier, _short(reason), _short(detail), outcome)
        with self._lock:
            if series not in self._sums and len(self._sums) >= MOST:
                series = series._replace(reason=reason if figure == "misses" else "", detail="")
            self._sums[series] = self._sums.get(series, 0) + value

    def sums(self) -> dict[Series, float]:
        """All of it, since the process began."""
        with self._lock:
            return dict(self._sums)

    def news(self) -> dict[Series, float]:
        """What was added since `written` was last told."""
        with self._lock:
            return {
                series: value - self._written.get(series, 0)
                for series, value in self._sums.items()
                if value != self._written.get(series, 0)
            }

    def written(self, news: dict[Series, float]) -> None:
        """These have been written, and are no news any more."""
        with self._lock:
            for series, value in news.items():
                self._written[series] = self._written.get(series, 0) + value

    def forget(self) -> None:
        """Begin at nothing: in a forked child, whose parent keeps what it has counted."""
        with self._lock:
            self._sums, self._written = {}, {}


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


_ledgers: dict[str, Ledger] = {}
_lock = threading.Lock()


def ledger_of(place: str) -> Ledger:
    """What this process has counted for the store at this place."""
    with _lock:
        return _ledgers.setdefault(place, Ledger())


def ledgers() -> dict[str, Ledger]:
    """All of them, by place."""
    with _lock:
        return dict(_ledgers)


def forget_all() -> None:
    """In a forked child: its parent keeps what it has counted. No lock is taken, which another thread may have held at the fork."""
    global _lock
    _lock = threading.Lock()
    _ledgers.clear()


__all__ = ["FIGURES", "Figure", "Ledger", "Series", "forget_all", "ledger_of", "ledgers"]
