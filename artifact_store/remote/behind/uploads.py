"""Sending what the spool notes, in a thread of its own: nobody waits for it but the end of the process, and that for a stated time.

One process of a machine sends at a time, by a lease; the others leave it their notes, and look now and then whether it still lives. What
fails is tried again with growing pauses while the process lives, and by the next one; what a remote refuses is not tried again in this
process.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.local.leases import Watch
from precast.artifact_store.remote import spool
from precast.artifact_store.remote.endpoint import EndpointError, Unreachable
from precast.artifact_store.remote.remote import Receipt, Remote
from precast.artifact_store.remote.spool import ARTIFACT, Pending
from precast.artifact_store.remote.workers import after_fork
from precast.artifact_store.statistics.series import ledger_of
from precast.artifact_store.statistics.spans import span_if_wanted
from precast.artifact_store.trust.signatures import Signature

log = logging.getLogger("precast.store")

AT_EXIT = 10.0
"""Seconds for which the end of a process waits for what is still to be sent."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
LEASE = "spool"


class Source(Protocol):
    """Where what is sent lies."""

    @property
    def root(self) -> Path:
        """The local store's folder."""

    def get(self, artifact_id: str, program_key: str | None = None) -> Manifest | None:
        """An artifact's manifest."""

    def blob(self, digest: str) -> bytes | None:
        """A blob, checked."""

    def signatures(self, manifest: Manifest) -> tuple[Signature, ...]:
        """Signatures of an artifact."""

    def record_file(self, kind: str, name: str) -> bytes | None:
        """A named record, as it lies there."""

    def record_signatures(self, kind: str, name: str) -> tuple[Signature, ...]:
        """Signatures of a named record."""


class Gone(Exception):
    """What was noted is not in the local store any more."""


class Uploads:
    """What a process has to send to remotes that it writes."""

    def __init__(self, tiers: Sequence[Remote], local: Source) -> None:
        self._tiers = {tier.place: tier for tier in tiers}
        self._local = local
        self._broken: set[tuple[str, str, str]] = set()
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._mine: set[Pending] = set()
        self._refused: set[str] = set()
        self.paused = False
        """Whether notes are kept and nothing is sent: for a process that is going to fork others, which some clients do not survive."""
        self._awake = self._looked = self._closed = False
        self._fails = 0
        self._watch = Watch(self._local.root / layout.LEASES / LEASE)
        """Kept from one attempt to the next: a holder that cannot be asked counts as dead once this has seen no heartbeat for a while."""
        self._behind_another = False
        """Whether notes are left to another process that holds the lease."""

    # -- what is to be sent

    def add(self, pending: Pending) -> None:
        """Note what is to be sent, and have it sent soon. Where no note can be kept, that is logged, and this process sends it anyway."""
        try:
            spool.note(self._local.root, pending)
        except (OSError, StoreError) as error:
            log.warning("%s: what is to be sent to %s cannot be noted: %s", self._local.root, pending.remote, error)
        with self._changed:
            self._mine.add(pending)
        self.wake(always=True)

    def wake(self, always: bool = False) -> None:
        """Have notes sent that are there, an earlier process's too. Unless `always`, looked for once."""
        if not self._tiers or self.paused or self._closed or (self._looked and not always):
            return
        self._looked = True
        if not always and not spool.pending(self._local.root, self._tiers):
            return
        with self._changed:
            self._awake = True
            self._changed.notify_all()
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(target=self._work, name="precast-upload", daemon=True)
            try:
                self._thread.start()  # with the lock: who comes next finds it alive
            except RuntimeError as error:
                log.info("nothing is sent to remotes by this process: %s", error)
                return
        _at_exit(self)

    def is_sent(self, program_key: str) -> bool:
        """Whether nothing of this program is to be sent by this process any more."""
        with self._changed:
            return not any(item.program == program_key and item.remote not in self._refused for item in self._mine)

    def refusing(self) -> tuple[str, ...]:
        """Places of the remotes that refused what this process sent them, so that it sends them nothing more."""
        return tuple(sorted(self._refused))

    def flush(self, seconds: float) -> bool:
        """Wait for at most so long until all that this process put is sent, or an attempt fails; whether it is sent."""
        until = time.monotonic() + seconds
        with self._changed:
            fails = self._fails
            self._awake = True
            self._changed.notify_all()
            while self._left() and self._thread is not None and self._thread.is_alive():
                if (left := until - time.monotonic()) <= 0 or self._fails > fails:
                    break
                self._changed.wait(left)
            return not self._left()

    def close(self, seconds: float) -> bool:
        """`flush`, and end the thread. What is not sent by then stays noted, for the next process. Endpoints are closed after it."""
        sent = self.flush(seconds)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        _open.discard(self)
        return sent

    def drain(self) -> list[Pending]:
        """Send all that is noted, whoever noted it, in this thread, once. What is left."""
        self.paused = False
        if spool.pending(self._local.root, self._tiers) or self._left():
            self._send_all()
        return spool.pending(self._local.root, self._tiers)

    def found_broken(self, tier: Remote, program_key: str, artifact_id: str) -> None:
        """What a remote has of an artifact is incomplete: when this process puts it, it is sent whole."""
        self._broken.add((tier.place, program_key, artifact_id))

    def broken(self, program_key: str, artifact_id: str) -> set[str]:
        """Places of the remotes that have it incompletely."""
        return {place for place, key, id_ in tuple(self._broken) if (key, id_) == (program_key, artifact_id)}

    # -- the thread

    def _left(self) -> list[Pending]:
        return [item for item in self._mine if item.remote not in self._refused]

    def _work(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                good = self._send_all()
            except Exception:
                log.exception("sending to remotes failed, which is a bug of precast")
                good = False
            pause = FIRST_PAUSE if good else min(pause * 2, LONGEST_PAUSE)
            with self._changed:
                self._fails += not good
                self._changed.notify_all()
                if not self._awake and not self._closed:
                    self._changed.wait(LONGEST_PAUSE if good else pause)
                if self._closed or (good and not self._awake and not self._behind_another and not self._left()):
                    self._thread = None
                    return
                self._awake = False

    def _send_all(self) -> bool:
        """Whether nothing is left that this process could send."""
        with self._changed:
            self._awake = False
        lease = self._watch.look()
        if lease is None:
            self._forget_what_others_sent()
            return not self._left()
        self._behind_another = False
        lease.keep()
        try:
            return self._send_noted()
        finally:
            lease.release()

    def _forget_what_others_sent(self) -> None:
        noted = {item.file for item in spool.pending(self._local.root, self._tiers)}
        self._behind_another = bool(noted)
        with self._changed:
            self._mine = {item for item in self._mine if item.file in noted}

    def _send_noted(self) -> bool:
        noted = {item.file: item for item in spool.pending(self._local.root, self._tiers)}
        with self._changed:
            unnoted = [item for item in self._mine if item.file not in noted]
        failed: set[str] = set()
        for item in (*noted.values(), *unnoted):
            if item.remote in self._refused or item.remote in failed:
                continue
            try:
                self._say(item, self._send(self._tiers[item.remote], item))
            except Gone as error:
                log.warning("%s is not sent to %s: %s", item.name[:12], item.remote, error)
            except EndpointError as error:
                if not self._is_final(item, error):
                    failed.add(item.remote)
                continue
            except StoreError as error:
                log.warning("%s is not sent to %s: %s", item.name[:12], item.remote, error)
                self._refused.add(item.remote)
                continue
            spool.done(self._local.root, item)
            with self._changed:
                self._mine = {other for other in self._mine if other.file != item.file}
                self._changed.notify_all()
        return not failed

    def _is_final(self, item: Pending, error: EndpointError) -> bool:
        """Whether it is no use to try again in this process."""
        if error.again or isinstance(error, Unreachable):
            log.info("%s is not sent to %s yet: %s", item.name[:12], item.remote, error)
            return False
        log.warning("%s refuses what is sent to it, so that nothing more is in this process: %s", item.remote, error)
        self._refused.add(item.remote)
        return True

    def _send(self, tier: Remote, item: Pending) -> Receipt:
        if item.kind != ARTIFACT:
            file = self._local.record_file(item.kind, item.name)
            if file is None:
                raise Gone("the record is not in the local store any more")
            signatures = self._local.record_signatures(item.kind, item.name)
            return tier.put_record(item.kind, item.name, file, self._blob, signatures, anew=item.kind == "tuning")
        manifest = self._local.get(item.name, item.program)
        if manifest is None:
            raise Gone("the artifact is not in the local store any more")
        with span_if_wanted("upload", program=item.program, artifact=item.name, tier=tier.place):
            receipt = tier.publish(manifest, self._blob, self._local.signatures(manifest), repair=item.repair)
        for root in item.roots:
            tier.relate(root, [item.program])
        return receipt

    def _blob(self, digest: str) -> bytes:
        data = self._local.blob(digest)
        if data is None:
            raise Gone(f"its blob {digest[:12]}… is missing or damaged; `precast verify` says more")
        return data

    def _say(self, item: Pending, receipt: Receipt) -> None:
        done = "had it already" if receipt.known else f"was sent {receipt.objects} objects, {receipt.sent} bytes"
        log.info("push: %s %s: %s %s", item.kind, item.name[:12], item.remote, done)
        ledger = ledger_of(str(self._local.root))
        ledger.add("uploads", program=item.program, tier=item.remote)
        ledger.add("upload_bytes", receipt.sent, program=item.program, tier=item.remote)


_open: set[Uploads] = set()


def _at_exit(uploads: Uploads) -> None:
    """Have the end of the process wait for it."""
    atexit.unregister(_finish)  # once, however often all were closed meanwhile
    atexit.register(_finish)
    _open.add(uploads)


def _finish() -> None:
    until = time.monotonic() + AT_EXIT
    for uploads in tuple(_open):
        if not uploads.flush(max(0.0, until - time.monotonic())):
            log.info("not all was sent to remotes before the end of the process; the next one goes on, or `precast push`")


__all__ = ["AT_EXIT", "Gone", "Source", "Uploads"]
