"""Leases on an endpoint: one compile across machines that share nothing but a remote.

A lease is a small document under `v1/leases/<name>`, made where nothing has that name (`put_new`), kept alive by a heartbeat (`replace`
with a higher number), and taken out at the end. Who finds it taken looks again, until it is gone or until its holder is dead. Dead means
that the holder's process no longer exists on this machine, or that the document stood still for `EXPIRY` seconds *by the waiter's own
clock*: no clock of another machine, and none of the service, is read. A dead holder's lease is taken over by `replace`, which succeeds for
one waiter only.

A holder lets go in two steps, since services compare before they write and not before they remove: it replaces its document by one that
says "released", which fails where another has taken over, and then removes that. A waiter that sees it leaves it alone, except where it
stays: its writer died between the two steps.

This module asks once and reports; who asks again, when, and for how long is `fleet_watch.py`'s. As leases of one machine do
(`artifact_store/local/leases.py`), these save work and guard nothing: two holders compile the same thing twice, and no more.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.local.leases import EXPIRY, identity, is_dead
from precast.artifact_store.remote.endpoint import Endpoint, Versioned

log = logging.getLogger("precast.store")

FOLDER = "v1/leases/"
LIMIT = 4096
"""Bytes that a lease may have: what others wrote is read."""
TOMBSTONE = 3.0
"""Seconds after which a released lease that was not taken out counts as free."""
_ROUNDS = 4
"""How often one attempt begins anew because others were faster."""
_TEXT = 200

State = Literal["held", "sending", "released"]


@dataclass(frozen=True)
class Holder:
    """What a lease says. `token`: one holder's, once; `after`: the token of a dead holder whose work is taken over; `beats`: counted up, so
    that a living holder's lease changes; `state`: "sending" once the work is done and its result is on its way to the remote; `store`:
    tells local stores apart; `process`: as `local.leases.identity` says it.
    """

    token: str
    store: str
    after: str = ""
    beats: int = 0
    state: State = "held"
    process: Mapping[str, str | int] = field(default_factory=identity)

    def to_bytes(self) -> bytes:
        """The document."""
        said = {"token": self.token, "store": self.store, "after": self.after, "beats": self.beats, "state": self.state}
        return pack({**said, **self.process})

    def __str__(self) -> str:
        """For people; what another machine wrote is shown as far as it can be printed."""
        pid, host = self.process.get("pid"), str(self.process.get("host", ""))
        return f"process {pid} on {host if host.isprintable() and 0 < len(host) <= 64 else 'another machine'}"


def holder_of(data: bytes, name: str) -> Holder | None:
    """What the document says; None where it is none of ours, so that it stands for a holder of whom nothing is known."""
    try:
        said = unpack(data, name)
    except DamagedRecord:
        return None
    if not isinstance(said, dict):
        return None
    texts = [said.get(key) for key in ("token", "store", "after", "place", "started", "host")]
    pid, beats, state = said.get("pid"), said.get("beats"), said.get("state")
    if not all(isinstance(text, str) and len(text) <= _TEXT for text in texts) or not isinstance(pid, int) or not isinstance(beats, int):
        return None
    if state != "held" and state != "sending" and state != "released":
        return None
    token, store, after, place, started, host = map(str, texts)
    return Holder(token, store, after, beats, state, {"pid": pid, "place": place, "started": started, "host": host})


class RemoteLease:
    """One waiter's requests for one lease, and then the lease. Each method asks the endpoint a few times and raises EndpointError.

    `holder`: the token of the last one seen, empty where it was free; `who`: that holder in words; `released`: how often one that was seen
    let it go by itself; `answered`: the monotonic time of the last answer.
    """

    def __init__(self, endpoint: Endpoint, name: str, store: str = "", expiry: float = EXPIRY) -> None:
        self.name = FOLDER + name
        self.holder = self.who = ""
        self.released = 0
        self.answered = 0.0
        self._endpoint = endpoint
        self._expiry = expiry
        self._mine = Holder(secrets.token_hex(8), store)
        self._seen = ""
        self._unchanged_since = 0.0

    # -- taking it

    def attempt(self) -> bool:
        """Takes the lease if it is free or its holder is dead; False where somebody holds it."""
        found = self._look() if self.answered else None
        for _ in range(_ROUNDS):
            if found is None:
                if self._put_new():
                    return True
                found = self._look()
                continue
            holder = holder_of(found.data, self.name)
            if holder is not None and holder.token == self._mine.token:
                return True  # taken by a request whose answer was lost
            self._note(found, holder)
            after = self._why_free(holder)
            if after is None:
                return False
            if self._take_over(found, after):
                return True
            found = self._look()
        return False

    def _put_new(self) -> bool:
        taken = self._endpoint.put_new(self.name, self._mine.to_bytes())
        self.answered = time.monotonic()
        if taken and self.holder:
            self.released += 1
        return taken

    def _take_over(self, found: Versioned, after: str) -> bool:
        self._mine = replace(self._mine, after=after)
        taken = self._endpoint.replace(self.name, self._mine.to_bytes(), found.version)
        self.answered = time.monotonic()
        if taken and after:
            log.info("lease %s: %s is gone; taking over", self.name, self.who or "its holder")
        elif taken:
            self.released += bool(self.holder)
        return taken

    def _look(self) -> Versioned | None:
        found = self._endpoint.get_versioned(self.name, LIMIT)
        self.answered = time.monotonic()
        return found

    def _note(self, found: Versioned, holder: Holder | None) -> None:
        """Who holds it, and since when nothing of it changed."""
        if found.version != self._seen:
            self._seen, self._unchanged_since = found.version, time.monotonic()
        if holder is None or holder.state == "released" or holder.token == self.holder:
            return
        self.released += self.holder not in ("", holder.after)
        self.holder, self.who = holder.token, str(holder)

    def _why_free(self, holder: Holder | None) -> str | None:
        """The token of a dead holder, "" where a living one is done; None where the lease is held."""
        still = time.monotonic() - self._unchanged_since
        if holder is None:
            return "unknown" if still > self._expiry else None
        if holder.state == "released":
            return "" if still > min(TOMBSTONE, self._expiry) else None
        if holder.state == "sending" and holder.store and holder.store == self._mine.store:
            return ""  # what it made is in this process's own local store
        return holder.token if still > self._expiry or is_dead(holder.process) else None

    # -- holding it

    def beat(self, state: State = "held") -> bool:
        """Shows that the holder lives. False where the lease is another's by now."""
        found = self._look()
        self._mine = replace(self._mine, beats=self._mine.beats + 1, state=state)
        if found is None:
            return self._endpoint.put_new(self.name, self._mine.to_bytes())  # the remote lost it
        if not self._is_mine(found):
            return False
        return self._endpoint.replace(self.name, self._mine.to_bytes(), found.version) or self._is_mine(self._look())

    def release(self) -> None:
        """Lets others have it, unless it is another's by now."""
        found = self._look()
        if found is None or not self._is_mine(found):
            return
        if self._endpoint.replace(self.name, replace(self._mine, state="released").to_bytes(), found.version):
            self._endpoint.remove(self.name)

    def _is_mine(self, found: Versioned | None) -> bool:
        holder = holder_of(found.data, self.name) if found is not None else None
        return holder is not None and holder.token == self._mine.token
