"""The remotes behind one local store: what a miss finds there comes into the store, and what is put into the store goes to them.

Calls never talk to a remote: threads do. A call that misses waits for each remote's budget at most; a remote that overran its budget and
has not answered since is not waited for until it has. What was put is noted in the spool, and sent by a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from precast.artifact_store.format.errors import StoreError, Untrusted
from precast.artifact_store.format.text import many
from precast.artifact_store.remote.behind import uploads
from precast.artifact_store.remote.behind.look import Look, Source
from precast.artifact_store.remote.behind.uploads import Uploads
from precast.artifact_store.remote.endpoint import Endpoint, EndpointError, Unreachable
from precast.artifact_store.remote.program_index import Entry, ProgramIndex
from precast.artifact_store.remote.remote import Fetched, FetchedRecord, Lost, Remote
from precast.artifact_store.remote.spool import ARTIFACT, Pending
from precast.artifact_store.remote.usage_report import Report
from precast.artifact_store.remote.workers import after_fork
from precast.artifact_store.statistics.series import ledger_of
from precast.artifact_store.statistics.spans import span_if_wanted

log = logging.getLogger("precast.store")

AGAIN = 30.0
"""Seconds after which a miss asks again for a program that was asked for."""
MOST = 64
"""Artifacts that one look fetches of one program, those that suit this machine best first."""
RecordName = tuple[str, str]
"""Kind and name."""


class Wants(Protocol):
    """What a machine wants of a program and its parts. Asked by the remotes' threads, so that it may not run users' code."""

    def order(self, entry: Entry) -> int | None:
        """How well an artifact suits: 0 is best, None not at all."""

    def records(self, program_key: str) -> Sequence[RecordName]:
        """Named records that a call of the program wants."""


class Local(uploads.Source, Protocol):
    """The local store, as far as remotes need it. Safe to call from several threads."""

    @property
    def root(self) -> Path:
        """Its folder."""

    @property
    def readonly(self) -> bool:
        """Whether nothing can be kept in it."""

    def has(self, program_key: str, artifact_id: str) -> bool:
        """Whether an artifact is there."""

    def has_blob(self, digest: str) -> bool:
        """Whether a blob is there."""

    def has_record(self, kind: str, name: str) -> bool:
        """Whether a named record is there."""

    def keep(self, fetched: Fetched) -> None:
        """Put an artifact into it that came from a remote. Raises StoreError."""

    def keep_record(self, kind: str, name: str, fetched: FetchedRecord) -> None:
        """Put a named record into it. Raises StoreError."""


class Remotes:
    """Nearest first. Safe to use from several threads; a forked child goes on with none of its parent's work."""

    def __init__(self, tiers: Sequence[Remote], local: Local, again: float = AGAIN) -> None:
        self.tiers = tuple(tiers)
        self._local = local
        self._again = again
        self.uploads = Uploads([tier for tier in self.tiers if tier.writable], local)
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[str, Look] = {}
        self._wants: dict[str, Wants] = {}
        self._records: dict[RecordName, float] = {}
        self._reports: list[Report] = []

    def __repr__(self) -> str:
        return f"<Remotes {', '.join(tier.place for tier in self.tiers)}>"

    # -- reading through

    def look(self, program_key: str, wants: Wants) -> Look:
        """The look for a program: the one that is under way or was made of late, else a new one. Returns at once."""
        return self._look(program_key, wants, self._again)

    def seconds(self) -> dict[Remote, float]:
        """How long a call that misses now may wait for each remote."""
        now = time.monotonic()
        with self._lock:
            looks = [look for look in self._looks.values() if not look.is_over]
        late = {tier for look in looks for tier in self.tiers if look.is_asking(tier) and now - look.began > tier.budget}
        return {tier: 0.0 if tier in late else tier.budget for tier in self.tiers}

    def record(self, kind: str, name: str) -> bool:
        """Whether the local store has a record that remotes were asked for now, at most for their budget; each is asked for once in a
        while.
        """
        look = Look(f"{kind}/{name}", self.tiers)
        self._ask_for_records(look, ((kind, name),))
        for _ in look.news(self.seconds()):
            break
        return self._local.has_record(kind, name)

    def said(self, program_key: str) -> str:
        """What remotes said of a program when they were asked last, for people; empty where they were not."""
        with self._lock:
            look = self._looks.get(program_key)
        return "" if look is None else str(look)

    def failure(self, program_key: str) -> tuple[str, Exception] | None:
        """Of the remotes that failed the last look for a program the first, with the error; an Unreachable for one that did not answer in
        its budget.
        """
        with self._lock:
            look = self._looks.get(program_key)
        if look is None:
            return None
        late = {tier.place: Unreachable("no answer within its budget") for tier in self.tiers if look.is_asking(tier)}
        return next(iter({**look.failures, **late}.items()), None)

    def unsuitable(self, program_key: str) -> dict[str, tuple[Entry, ...]]:
        """What each remote had of a program when it was asked last, where this machine can use none of it."""
        with self._lock:
            look = self._looks.get(program_key)
        return {} if look is None else dict(look.unsuitable)

    # -- the fleet: what leases need

    def lease_endpoint(self) -> Endpoint | None:
        """The remote on which machines agree who compiles: the farthest that is written, which most machines share; None where there is
        none, or it fails at the moment.
        """
        shared = next((tier for tier in reversed(self.tiers) if tier.writable), None)
        return shared.endpoint if shared is not None and not shared.trouble else None

    def refresh(self, program_key: str) -> None:
        """Bring what remotes have of a program into the local store now. Returns when that is done, or a remote does not answer in time."""
        wants = self._wants.get(program_key)
        if wants is None:
            return  # nobody here has asked for it, so that it is not known what suits this machine
        look = self._look(program_key, wants, 0.0)
        for _ in look.news({tier: max(tier.budget, 60.0) for tier in self.tiers}):
            pass

    def is_sent(self, program_key: str) -> bool:
        """Whether nothing of a program is noted to be sent by this process any more."""
        return self.uploads.is_sent(program_key)

    # -- putting

    def put(self, program_key: str, artifact_id: str, wholes: Iterable[str] = (), tiers: Iterable[Remote] | None = None) -> None:
        """Have an artifact of the local store sent to every remote that is written, or to `tiers`. `wholes`: keys of the programs that its
        program is a part of. Returns once that is noted.
        """
        roots = tuple(sorted(wholes))
        broken = self.uploads.broken(program_key, artifact_id)
        for tier in self.tiers if tiers is None else tiers:
            if tier.writable:
                self.uploads.add(Pending(tier.place, ARTIFACT, artifact_id, program_key, roots, tier.place in broken, time.time()))

    def put_record(self, kind: str, name: str) -> None:
        """Have a named record of the local store sent."""
        for tier in self.tiers:
            if tier.writable:
                self.uploads.add(Pending(tier.place, kind, name, noted=time.time()))

    def used(self, artifact_id: str) -> None:
        """Tell remotes that are written, at intervals, that this process used an artifact. Returns at once."""
        with self._lock:
            if not self._reports:
                self._reports = [Report(tier.endpoint) for tier in self.tiers if tier.writable]
        for report in self._reports:
            report.note(artifact_id)

    def close(self, seconds: float = 0.0) -> None:
        """Send what is noted, for so many seconds at most, and close all connections. What is not sent by then stays noted."""
        self.uploads.close(seconds)
        for report in self._reports:
            report.close()
        for tier in self.tiers:
            tier.endpoint.close()

    # -- inside

    def _look(self, program_key: str, wants: Wants, again: float) -> Look:
        with self._lock:
            known = self._looks.get(program_key)
            if known is not None and (known.over_since is None or time.monotonic() - known.over_since < again):
                return known
            look = self._looks[program_key] = Look(program_key, self.tiers)
            self._wants[program_key] = wants
        indexes: dict[Remote, ProgramIndex | None] = {}
        for tier in self.tiers:
            look.begin(tier)
        self._ask_for_records(look, wants.records(program_key))
        for tier in self.tiers:
            tier.workers.submit(partial(self._ask, look, tier, wants, indexes))
        self.uploads.wake()  # what an earlier process left
        return look

    def _ask(self, look: Look, tier: Remote, wants: Wants, indexes: dict[Remote, ProgramIndex | None]) -> None:
        """Fetch what one remote has."""
        try:
            index = tier.index(look.program_key)
            indexes[tier] = index
            if index is None:
                look.say(tier, f"{tier.place} has nothing of it")
                return
            for key in index.related:
                self._look(key, wants, self._again)
            self._fetch_all(look, tier, index, wants)
            self._fill_nearer(look, tier, indexes)
        except (EndpointError, StoreError) as error:
            look.say(tier, f"{tier.place} could not be asked: {error}")
            self._count_failure(look, tier, error)
            log.info("%s: %s: %s", tier.place, look.program_key, error)
        finally:
            look.end(tier)

    def _fetch_all(self, look: Look, tier: Remote, index: ProgramIndex, wants: Wants) -> None:
        ranked = [(place, entry) for entry in index.entries if (place := wants.order(entry)) is not None]
        suitable = [entry for _, entry in sorted(ranked, key=lambda item: item[0])]
        wanted = [entry for entry in suitable if not self._local.has(look.program_key, entry.artifact_id)][:MOST]
        if index.entries and not suitable:
            look.unsuitable[tier.place] = index.entries
        of = f"{many(len(index.entries), 'artifact')} of it, of which {len(suitable)} can run here"
        look.say(tier, f"{tier.place} has {of}" + (", and the store has all of these" if suitable and not wanted else ""))
        if self._local.readonly and wanted:
            look.say(tier, f"{tier.place} has {of}, and the local store at {self._local.root} is read-only, so that none can be fetched")
            return
        mine = [entry for entry in wanted if look.offer(entry.artifact_id, (tier, entry)) is not None]
        tier.workers.run([partial(self._fetch, look, (tier, entry)) for entry in mine])

    def _fetch(self, look: Look, source: Source | None) -> None:
        """Fetch an artifact, and where that fails, from whoever else was found to have it meanwhile."""
        while source is not None:
            tier, entry = source
            what = f"{look.program_key}: artifact {entry.artifact_id[:12]}"
            began = time.monotonic()
            try:
                with span_if_wanted("fetch", program=look.program_key, artifact=entry.artifact_id, tier=tier.place):
                    fetched = tier.fetch(look.program_key, entry, self._local.has_blob)
                self._local.keep(fetched)
            except (EndpointError, Untrusted, StoreError) as error:
                if isinstance(error, Lost):
                    self.uploads.found_broken(tier, look.program_key, entry.artifact_id)
                look.say(tier, f"{tier.place} has an artifact that was not taken: {str(error).removeprefix(f'{tier.place}: ')}")
                self._count_failure(look, tier, error)
                log.warning("%s was not fetched: %s", what, error)
                source = look.failed(entry.artifact_id)
                continue
            took = time.monotonic() - began
            log.info("fetch: %s for %s from %s: %d bytes in %.3f s", what, entry.target, tier.place, fetched.received, took)
            self._count_fetch(look, tier, fetched.received, took)
            look.landed()
            return

    def _count_fetch(self, look: Look, tier: Remote, received: int, seconds: float) -> None:
        ledger = ledger_of(str(self._local.root))
        for figure, value in (("fetches", 1), ("fetch_bytes", received), ("fetch_seconds", seconds)):
            ledger.add(figure, value, program=look.program_key, tier=tier.place)

    def _count_failure(self, look: Look, tier: Remote, error: Exception) -> None:
        """A remote failed a look: for the statistics, and for who asks why the call missed."""
        look.failures[tier.place] = error
        ledger_of(str(self._local.root)).add("fetch_failures", program=look.program_key, tier=tier.place, reason=type(error).__name__)

    def _fill_nearer(self, look: Look, tier: Remote, indexes: Mapping[Remote, ProgramIndex | None]) -> None:
        """Have what this remote has, and is here by now, sent to nearer remotes that answered and lack it."""
        index = indexes[tier]
        assert index is not None
        for nearer in self.tiers[: self.tiers.index(tier)]:
            if not nearer.writable or nearer not in indexes:
                continue
            theirs = indexes[nearer]
            for entry in index.entries:
                lacks = theirs is None or theirs.entry(entry.artifact_id) is None
                if lacks and self._local.has(index.program_key, entry.artifact_id):
                    self.put(index.program_key, entry.artifact_id, tiers=[nearer])

    def _ask_for_records(self, look: Look, records: Iterable[RecordName]) -> None:
        now = time.monotonic()
        with self._lock:
            wanted = [record for record in records if now - self._records.get(record, -self._again) >= self._again]
            self._records.update(dict.fromkeys(wanted, now))
        wanted = [record for record in wanted if not self._local.has_record(*record)]
        for kind, name in wanted:
            for tier in self.tiers:
                look.begin(tier)
            for tier in self.tiers:
                tier.workers.submit(partial(self._fetch_record, look, tier, kind, name))

    def _fetch_record(self, look: Look, tier: Remote, kind: str, name: str) -> None:
        try:
            found = tier.record(kind, name, self._local.has_blob)
            if found is not None and not self._local.has_record(kind, name):
                self._local.keep_record(kind, name, found)
                log.info("fetch: %s/%s from %s: %d bytes", kind, name, tier.place, found.received)
                look.landed()
        except (EndpointError, Untrusted, StoreError) as error:
            log.info("%s: %s/%s was not fetched: %s", tier.place, kind, name, error)
        finally:
            look.end(tier)


__all__ = ["AGAIN", "Local", "Remotes", "Wants"]
