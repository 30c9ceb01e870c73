"""The transfer: several programs at a time, each artifact's blobs before its manifest, so that a kill at any moment leaves whole artifacts
and blobs that the next transfer finds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.moving.place import Holding, Moved, Place, RecordName, Refused
from precast.artifact_store.moving.plan import Plan

log = logging.getLogger("precast.store")
JOBS = 8
"""Artifacts on their way at a time: a transfer mostly waits for the other side."""


@dataclass(frozen=True)
class Trouble:
    """What was not moved, and why. `refused`: by a trust policy."""

    what: str
    program: str
    reason: str
    refused: bool


@dataclass
class Report:
    """What a transfer did. `sent`: bytes that went over; `spared`: bytes of content that the destination had already."""

    moved: list[Holding] = field(default_factory=list)
    signed: list[Holding] = field(default_factory=list)
    records: list[RecordName] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    sent: int = 0
    spared: int = 0

    @property
    def good(self) -> bool:
        return not self.troubles


def transfer(source: Place, destination: Place, plan: Plan, *, jobs: int = JOBS, told: Callable[[int], None] = lambda _: None) -> Report:
    """Carry out a plan. `told(bytes)`: called from several threads whenever so many bytes more are at the destination.

    What fails of one artifact is in the report, and the others go on. Raises StoreError where the destination cannot be finished.
    """
    work = _Transfer(source, destination, told)
    pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="precast-move")
    try:
        futures = [pool.submit(work.record, name) for name in plan.records]
        futures += [pool.submit(work.artifact, holding) for holding in plan.wanted]
        futures += [pool.submit(work.signatures, holding) for holding in plan.unsigned]
        _all(futures)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if plan.wanted or plan.records or plan.unsigned:
        work.count(destination.finish())
    report = work.report
    report.moved.sort(key=lambda holding: holding.name)
    return report


def _all(futures: list[Future[None]]) -> None:
    """Wait for all; raises what none should raise, a fault of precast, as soon as one does."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in done:
        future.result()


class _Transfer:
    def __init__(self, source: Place, destination: Place, told: Callable[[int], None]) -> None:
        self._source, self._destination, self._told = source, destination, told
        self._lock = threading.Lock()
        self.report = Report()

    def count(self, moved: Moved) -> None:
        with self._lock:
            self.report.sent += moved.sent
            self.report.spared += moved.spared

    def artifact(self, holding: Holding) -> None:
        done = 0

        def told(size: int) -> None:
            nonlocal done
            done += size
            self._told(size)

        try:
            parcel = self._source.parcel(holding)
            assert parcel is not None, "of a record alone that may be"
            self.count(self._destination.deliver(holding, parcel, told))
        except (StoreError, Refused) as error:
            self._failed(holding.artifact_id, holding.program_name, error)
        else:
            with self._lock:
                self.report.moved.append(holding)
        self._told(holding.size - done)  # the manifest; and what is not to come any more

    def record(self, name: RecordName) -> None:
        try:
            parcel = self._source.parcel(name)
            if parcel is None:
                return
            self.count(self._destination.deliver(name, parcel, lambda _: None))
        except (StoreError, Refused) as error:
            self._failed("/".join(name), "", error)
        else:
            with self._lock:
                self.report.records.append(name)

    def signatures(self, holding: Holding) -> None:
        try:
            parcel = self._source.parcel(holding)
            assert parcel is not None, "of a record alone that may be"
            self._destination.sign(parcel)
        except (StoreError, Refused) as error:
            self._failed(holding.artifact_id, holding.program_name, error)
        else:
            with self._lock:
                self.report.signed.append(holding)

    def _failed(self, what: str, program: str, error: Exception) -> None:
        log.info("%s: not moved: %s", what[:40], error)
        with self._lock:
            self.report.troubles.append(Trouble(what, program, str(error), isinstance(error, Refused)))
