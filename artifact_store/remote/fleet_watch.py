"""One waiter a machine: a lease of this machine first, then, by whoever holds that, the fleet's.

`FleetWatch` is a `leases.Watch` whose `look` never asks the remote itself: a thread does, with growing pauses and some jitter, and fetches
what other machines publish meanwhile into the local store, where the waiting call finds it. So a call that does not want to wait
(`background_compile`) does not, and one that does is not held up by a remote either: it goes on without the fleet's lease

* when the remote fails, or did not answer for `ANSWER` seconds at first, for `SILENCE` seconds later;
* when the service keeps no leases (it has no conditional writes);
* after `PATIENCE` seconds of waiting for another machine.

It still has its own machine's lease then. After the work the thread keeps the fleet's lease until what was made has reached the remote,
and lets it go then: who waits finds the result, or knows that there is none. The caller does not wait for that.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

from precast.artifact_store.local.leases import EXPIRY, HEARTBEAT, Lease, Watch
from precast.artifact_store.remote.endpoint import Endpoint, EndpointError, Unsupported
from precast.artifact_store.remote.leases import RemoteLease

log = logging.getLogger("precast.store")

ANSWER = 5.0
"""Seconds that the remote may take for its first answer about a lease."""
SILENCE = 20.0
"""Seconds without an answer (or without the end of a fetch) after which a waiter goes on by itself."""
PATIENCE = 300.0
"""Seconds to wait for another machine that is alive."""
ABANDONED = 5.0
"""Seconds without a look after which nobody waits any more: calls that run eagerly meanwhile may never come back."""
SENDING = 600.0
"""Seconds for which a lease is kept after the work, until its result has reached the remote."""
AT_EXIT = 2.0
"""Seconds for which the end of a process waits for its leases to be let go, after what it made was sent; else they expire."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_SENT_PAUSE = 0.1
_LIVE: set[_Claim] = set()
"""What a thread of this process works for."""
_told: set[str] = set()
"""URLs of remotes that keep no leases, of which that was said."""


class Fleet(Protocol):
    """The remotes of a store, as far as leases need them. Safe to call from several threads."""

    def lease_endpoint(self) -> Endpoint | None:
        """The remote on which machines agree who compiles; None where there is none that can be written, or it failed of late."""

    def refresh(self, program_key: str) -> None:
        """Bring what remotes have of this program, and this machine can use, into the local store. Returns when that is done; raises
        nothing for what remotes do.
        """

    def is_sent(self, program_key: str) -> bool:
        """Whether nothing of this program waits to be sent, or will be sent by this process, any more."""


class FleetWatch(Watch):
    """Attempts to take a lease on this machine and then on the remote. See `Watch`."""

    def __init__(self, path: Path, fleet: Fleet, program_key: str, expiry: float = EXPIRY) -> None:
        super().__init__(path, expiry)
        self._fleet = fleet
        self._program_key = program_key
        self._claim: _Claim | None = None
        self._released_here = 0

    def look(self) -> Lease | None:
        """As `Watch.look`; without waiting for the remote."""
        if self._claim is None or self._claim.is_over:
            local = super().look()
            if local is None or not local.held:
                return local
            endpoint = self._fleet.lease_endpoint()
            if endpoint is None or endpoint.url in _told:
                return local
            self._released_here = self.released
            local.keep(self.expiry)
            self._claim = _Claim(endpoint, self._fleet, self.path, self._program_key, local, self.expiry)
            if not self._claim.start():
                return local
            return None
        return self._look_at(self._claim)

    def _look_at(self, claim: _Claim) -> Lease | None:
        remote = claim.remote
        if remote.holder:
            self.holder, self.who = remote.holder, remote.who
        self.released = self._released_here + remote.released
        taken = claim.look()
        if taken is None:
            return None
        self._claim = None
        return _FleetLease(claim, self.waited)

    def leave(self) -> None:
        """Lets go of the machine's lease, too."""
        if self._claim is not None:
            self._claim.end()


class _FleetLease(Lease):
    """The machine's lease, and the fleet's where that could be had."""

    def __init__(self, claim: _Claim, waited: float) -> None:
        super().__init__(claim.local.path, claim.local.held, waited)
        self._claim = claim

    def keep(self, expiry: float = EXPIRY) -> None:
        """Both are kept already."""

    def release(self) -> None:
        """Lets the machine's go now, and the fleet's when the result has been sent."""
        self._claim.end()
        self.held = False


class _Claim:
    """One machine's wait for a lease on the remote, then the lease, in a thread of its own; with it goes the machine's own lease.

    `is_over`: nobody looked for a while, so that all was let go.
    """

    def __init__(self, endpoint: Endpoint, fleet: Fleet, path: Path, program_key: str, local: Lease, expiry: float) -> None:
        self.local = local
        self.is_over = False
        self.remote = RemoteLease(endpoint, path.name, _mark(path.parent), expiry)
        self._endpoint = endpoint
        self._fleet = fleet
        self._program_key = program_key
        self._every = min(HEARTBEAT, expiry / 4)
        self._owner = os.getpid()
        self._began = self._looked = time.monotonic()
        self._alive = self._began
        self._decided = threading.Event()  # held, or to be done without
        self._held = False
        self._picked = False
        self._end = threading.Event()

    def start(self) -> bool:
        """Begins to ask; False where no thread can be started."""
        _at_exit()
        _LIVE.add(self)
        try:
            threading.Thread(target=self._run, name="precast-fleet-lease", daemon=True).start()
        except RuntimeError as error:
            _LIVE.discard(self)
            log.info("lease %s: %s; compiling without the fleet's", self.remote.name, error)
            return False
        return True

    # -- the caller's side

    def look(self) -> bool | None:
        """Whether the fleet's lease is held (True) or to be done without (False); None while that is open."""
        self._looked = now = time.monotonic()
        if not self._decided.is_set():
            reason = self._why_without(now)
            if not reason:
                return None
            self._without(reason)
        self._picked = True
        return self._held

    def _why_without(self, now: float) -> str:
        if not self.remote.answered:
            return f"no answer for {ANSWER:.0f} s" if now - self._began > ANSWER else ""
        if now - self._alive > SILENCE:
            return f"no answer for {SILENCE:.0f} s"
        return f"{self.remote.who} does not come to an end within {PATIENCE:.0f} s" if now - self._began > PATIENCE else ""

    def _without(self, reason: str) -> None:
        if not self._decided.is_set():
            log.info("lease %s on %s: %s; compiling without the fleet's", self.remote.name, self._endpoint.url, reason)
        self._decided.set()

    def end(self) -> None:
        """The machine's lease is let go now, the fleet's by the thread. A forked child ends nothing: it is its parent's."""
        if os.getpid() != self._owner:
            return
        self._end.set()
        self.local.release()

    # -- the thread's side

    def _run(self) -> None:
        try:
            if self._take():
                self._keep()
                self._send()
                self.remote.release()
        except Unsupported as error:
            if self._endpoint.url not in _told:
                _told.add(self._endpoint.url)
                log.warning("%s keeps no leases (%s): machines that share it may compile the same thing at once", self._endpoint.url, error)
            self._decided.set()
        except EndpointError as error:
            if self._held:
                log.info("lease %s on %s: %s; it was not let go, and expires", self.remote.name, self._endpoint.url, error)
            else:
                self._without(str(error))
        except Exception:
            log.exception("lease %s: waiting for other machines failed; going on without them", self.remote.name)
            self._decided.set()
        finally:
            _LIVE.discard(self)

    def _take(self) -> bool:
        """Waits for the lease. True with it; what was published before it was taken is in the local store then."""
        for pause in _pauses():
            taken = self.remote.attempt()
            self._alive = time.monotonic()
            self._refresh(taken)
            self._alive = time.monotonic()
            if taken:
                self._held = not self._decided.is_set()
                self._decided.set()
                return True
            if self._decided.is_set() or self._end.wait(pause) or self._is_abandoned():
                return False
        return False

    def _refresh(self, taken: bool) -> None:
        """Fetches what is new; a lease that is held already is kept meanwhile, since a fetch may take longer than a lease lasts."""
        if not taken:
            self._fleet.refresh(self._program_key)
            return
        fetch = threading.Thread(target=self._fleet.refresh, args=(self._program_key,), name="precast-fleet-fetch", daemon=True)
        fetch.start()
        fetch.join(self._every)
        while fetch.is_alive() and not self._decided.is_set():
            self.remote.beat()
            fetch.join(self._every)

    def _keep(self) -> None:
        """Shows that this process is at work, until it has ended."""
        failing = 0.0
        while self._held and not self._end.wait(self._every):
            if self._is_abandoned():
                return
            try:
                if not self.remote.beat():
                    log.info("lease %s: another machine has taken it over from this process", self.remote.name)
                    return
                failing = 0.0
            except EndpointError as error:
                if not failing:
                    log.info("lease %s: %s; it may be taken over by another machine", self.remote.name, error)
                failing = failing or time.monotonic()

    def _send(self) -> None:
        """Keeps the lease while what was made is on its way."""
        begin = time.monotonic()
        beaten = 0.0
        while self._held and self._picked and not self._fleet.is_sent(self._program_key) and time.monotonic() - begin < SENDING:
            if time.monotonic() - beaten > self._every:
                if not self.remote.beat("sending"):
                    return
                beaten = time.monotonic()
            time.sleep(_SENT_PAUSE)

    def _is_abandoned(self) -> bool:
        """Whether nobody waits for it any more; then all is let go."""
        if self._picked or time.monotonic() - self._looked < ABANDONED:
            return False
        self.is_over = True
        self.end()
        return True


def _mark(folder: Path) -> str:
    """Tells local stores apart without naming them."""
    try:
        there = folder.stat()
        return hashlib.sha256(f"{os.uname().nodename}/{there.st_dev}/{there.st_ino}".encode()).hexdigest()[:16]
    except OSError:
        return ""


def _pauses() -> Iterator[float]:
    """Seconds between two questions to the remote: growing, and never the same for two machines."""
    pause = _FIRST_PAUSE
    while True:
        yield pause * random.uniform(0.5, 1.0)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def wait_until_released(seconds: float) -> bool:
    """Gives leases whose work is done a little time to be let go. Whether all are."""
    deadline = time.monotonic() + seconds
    while _LIVE and time.monotonic() < deadline:
        time.sleep(0.01)
    return not _LIVE


@cache
def _at_exit() -> None:
    """Have the end of the process let go of leases: registered before anything is sent, and so done after that."""
    atexit.register(_let_go)


def _let_go() -> None:
    for claim in tuple(_LIVE):
        claim.end()
    if not wait_until_released(AT_EXIT):
        log.info("%d leases on remotes were not let go before the end of the process; they expire", len(_LIVE))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LIVE.clear)
