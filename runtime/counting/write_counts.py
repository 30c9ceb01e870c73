"""What this process has counted, put together and written: the calls of its programs, their misses, compiles, and what they lost.

Imported when the first call misses, and when what was counted is written (`tallies.py` says when); never by a warm call.
"""

from __future__ import annotations

import secrets
import threading
import time

from precast.artifact_store import Store
from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.statistics import series
from precast.artifact_store.statistics.causes import Cause, Outcome
from precast.artifact_store.statistics.fold import fold
from precast.artifact_store.statistics.places import folder_to_write, is_off
from precast.artifact_store.statistics.series import Ledger, Series
from precast.artifact_store.statistics.sheets import Sheet, append, machine_name
from precast.runtime.common.log import logger
from precast.runtime.counting.counted import Counted
from precast.runtime.counting.tallies import Tally, begin_writing, tallies, writes

_stores: dict[str, Store] = {}
_folded: set[str] = set()
_began: dict[str, float] = {}
_one_at_a_time = threading.Lock()


class _Process:
    """A number that tells this process from all others that write: pids come again, in containers at once."""

    def __init__(self) -> None:
        self.number = secrets.randbits(47) + 1


_this = _Process()
_WAITED = "wait"
"""The stage of a compile in which it waits for others: no seconds that somebody saves."""


def ledger_for(store: Store) -> Ledger:
    """What this process has counted for a store."""
    place = str(store.root)
    _stores.setdefault(place, store)
    _began.setdefault(place, time.time())
    return series.ledger_of(place)


class Miss:
    """A call that no artifact served at first: counted once it is known what became of it."""

    def __init__(self, program: Counted, cause: Cause, detail: str = "") -> None:
        self._program = program
        self.cause = cause
        self.detail = detail

    def ended(self, outcome: Outcome, cause: Cause | None = None) -> None:
        """What became of the call. `cause`: in place of the one that was found at first."""
        if not begin_writing():
            return
        detail = self.detail if cause is None else ""
        _named(self._program).add("misses", program=self._program.key, reason=str(cause or self.cause), detail=detail, outcome=str(outcome))


def count_compile(program: Counted, seconds: float, outcome: str, stored: int = 0) -> None:
    """A compilation came to an end. `stored`: bytes of the blobs that were put into the store."""
    if not begin_writing():
        return
    ledger = _named(program)
    ledger.add("compiles", program=program.key, outcome=outcome)
    ledger.add("compile_seconds", seconds, program=program.key, outcome=outcome)
    if stored:
        ledger.add("store_bytes", stored, program=program.key)


def count_bypass(program: Counted, kind: str, reason: str, seconds: float) -> None:
    """An attempt to compile what cannot be stored, or not be compiled, for a reason."""
    if not begin_writing():
        return
    ledger = _named(program)
    ledger.add("bypasses", program=program.key, reason=reason, outcome=kind)
    ledger.add("lost_seconds", seconds, program=program.key, reason=reason, outcome=kind)


def count_wait(program: Counted, seconds: float) -> None:
    """A call has waited for another process's compile."""
    if begin_writing():
        _named(program).add("wait_seconds", seconds, program=program.key)


def _named(program: Counted | Tally) -> Ledger:
    ledger = ledger_for(program.store)
    ledger.names[program.key if not isinstance(program, Tally) else program.program_key] = program.name
    return ledger


def collect() -> None:
    """Put what the programs' tallies hold into the ledgers."""
    with _one_at_a_time:
        for tally in tuple(tallies):
            over = tally.is_over  # asked first: what it counts afterwards is nothing
            _collect(tally)
            if over:
                tallies.remove(tally)


def _collect(tally: Tally) -> None:
    numbers = tally.numbers()
    served, eager, bypassed = (now - then for now, then in zip(numbers, tally.written, strict=True))
    tally.written = numbers
    used, tally.used = tally.used, []
    if not (served or eager or bypassed or used):
        return
    ledger, key = _named(tally), tally.program_key
    if served:
        ledger.add("calls", served, program=key)
    if eager:
        ledger.add("misses", eager, program=key, reason=str(Cause.REFUSED), outcome=str(Outcome.EAGER))
    if bypassed:
        kind = {"": "skipped", Cause.FAILED: "failed", Cause.REFUSED: "refused"}.get(tally.cause, "")
        if tally.cause:
            ledger.add("misses", bypassed, program=key, reason=tally.cause, outcome=str(Outcome.EAGER))
        if kind:
            ledger.add("bypassed_calls", bypassed, program=key, reason=tally.reason, outcome=kind)
    for manifest in used:
        if manifest.artifact_id in tally.store.made:
            continue
        ledger.add("loads", program=key)
        ledger.add("load_bytes", sum(manifest.blobs.values()), program=key)
        try:
            seconds = manifest.provenance.get("seconds")
        except RecordError as error:
            logger("store").info("statistics: artifact %s: %s", manifest.artifact_id[:12], error)
            continue
        if isinstance(seconds, dict):
            spent = (value for stage, value in seconds.items() if stage != _WAITED and isinstance(value, (int, float)))
            ledger.add("saved_seconds", sum(spent), program=key)


def write() -> None:
    """Write what was counted since the last time. Never raises: what cannot be written is logged, and tried again the next time."""
    try:
        collect()
        for place in series.ledgers():
            _write(place)
    except Exception:  # noqa: BLE001 - at the end of a process, or in a thread: nobody is there to catch it
        logger("store").warning("statistics: what this process has counted could not be written", exc_info=True)


def _write(place: str) -> None:
    store, ledger = _stores.get(place), series.ledger_of(place)
    news = ledger.news()
    if not news or store is None or is_off():
        return
    folder, root = folder_to_write(store.root, store.readonly)
    now = time.time()
    keys = {item.program for item in news}
    names = {key: name for key, name in tuple(ledger.names.items()) if key in keys}
    try:
        append(folder, Sheet(_began.get(place, now), now, machine_name(), place, news, names, 1, _this.number), root)
    except OSError as error:
        logger("store").info("statistics: %s cannot be written (%s); tried again later", folder, error.strerror or error)
        return
    ledger.written(news)
    _began[place] = now
    if place not in _folded:
        _folded.add(place)
        try:
            fold(folder, root)
        except OSError as error:
            logger("store").info("statistics: %s: old files are not added up (%s)", folder, error.strerror or error)


def sums() -> tuple[dict[Series, float], dict[str, str]]:
    """All that this process has counted, and its programs' names by key."""
    collect()
    total: dict[Series, float] = {}
    names: dict[str, str] = {}
    for ledger in series.ledgers().values():
        names |= ledger.names
        for item, value in ledger.sums().items():
            total[item] = total.get(item, 0) + value
    return total, names


def _forget() -> None:
    """In a forked child."""
    global _one_at_a_time
    _one_at_a_time = threading.Lock()
    series.forget_all()
    _began.clear()
    _this.number = secrets.randbits(47) + 1


writes.forget = _forget

__all__ = ["Miss", "collect", "count_bypass", "count_compile", "count_wait", "ledger_for", "sums", "write"]
