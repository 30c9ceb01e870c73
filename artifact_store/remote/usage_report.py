"""Uses on a remote: each machine keeps its totals in an object of its own, `v1/usage/<machine>`, so that who prunes the remote, or the
store from which servers were copied, knows what is used.

A process adds what it used since it told last. It never waits for that: `Report` has a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.local.machine_uses import Counts, Uses, added, from_bytes, later, to_bytes
from precast.artifact_store.local.usage import machine_name
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.compress import compress, expand_within
from precast.artifact_store.remote.endpoint import Endpoint, EndpointError, Garbled, Unreachable, Unsupported

log = logging.getLogger("precast.store")

EVERY = 600.0
"""Seconds between two reports of one process."""
FIRST = 30.0
"""Seconds until the first: a process that serves tells of the artifacts that it began with in one."""
TRIES = 10
LIVE = ".live"
"""Ends the name under which processes tell of their own uses; `precast uses --push` tells totals of a store under the machine's name."""


def read(endpoint: Endpoint, machine: str) -> dict[str, Uses]:
    """What a machine told; empty where it told nothing. Raises EndpointError, Garbled for what is damaged."""
    return _parsed(endpoint.get(layout.usage_name(machine), layout.MAX_INDEX), machine, endpoint.url)


def read_all(endpoint: Endpoint) -> dict[str, dict[str, Uses]]:
    """What all machines told, by machine; what is damaged is left out, logged. Raises Unsupported where the endpoint lists nothing."""
    found: dict[str, dict[str, Uses]] = {}
    for listed in list(endpoint.names(layout.USAGE)):
        machine = listed.name.removeprefix(layout.USAGE)
        try:
            found[machine] = read(endpoint, machine)
        except (ValueError, Garbled) as error:
            log.warning("%s: what machine %s used is not known: %s", endpoint.url, machine, error)
    return found


def add(endpoint: Endpoint, machine: str, news: Counts) -> None:
    """Add to a machine's totals. Raises EndpointError."""
    _change(endpoint, machine, lambda before: added(before, news))


def tell(endpoint: Endpoint, machine: str, totals: Counts) -> None:
    """Bring a machine's totals up to these. Raises EndpointError."""
    _change(endpoint, machine, lambda before: later(before, totals))


def _change(endpoint: Endpoint, machine: str, edit: Callable[[Counts], Counts]) -> None:
    name = layout.usage_name(machine)
    for attempt in range(TRIES):
        time.sleep(0.05 * attempt)
        found = endpoint.get_versioned(name, layout.MAX_INDEX)
        try:
            before = _parsed(None if found is None else found.data, machine, endpoint.url)
        except Garbled as error:
            log.warning("%s; it is begun anew", error)
            before = {}
        data = compress(to_bytes(edit(before)))
        try:
            if endpoint.put_new(name, data) if found is None else endpoint.replace(name, data, found.version):
                return
        except Unsupported:
            endpoint.put(name, data)
            return
    raise Unreachable(f"{endpoint.url}: {name} was changed by others {TRIES} times in a row; it is told with the next report")


def _parsed(data: bytes | None, machine: str, place: str) -> dict[str, Uses]:
    if data is None:
        return {}
    where = layout.usage_name(machine)
    try:
        return from_bytes(expand_within(data, layout.MAX_INDEX, where), where)
    except DamagedRecord as error:
        raise Garbled(f"{place}: {error}") from error


class Report:
    """The uses of one process on their way to one remote. Safe to use from several threads."""

    def __init__(self, endpoint: Endpoint, machine: str = "", every: float = EVERY, first: float = FIRST) -> None:
        self._endpoint = endpoint
        self._machine = machine or f"{machine_name()}{LIVE}"
        self._every = every
        self._first = first
        self._lock = threading.Lock()
        self._news: dict[str, Uses] = {}
        self._timer: threading.Timer | None = None

    def note(self, artifact_id: str) -> None:
        """One use; returns at once."""
        with self._lock:
            self._news = added(self._news, {artifact_id: Uses(1, time.time())})
            if self._timer is None:
                self._begin(self._first)

    def flush(self) -> None:
        """Tell what was not told yet. What the remote refuses, or is not there to hear, is kept for the next time, logged."""
        with self._lock:
            news, self._news = self._news, {}
        if not news:
            return
        try:
            add(self._endpoint, self._machine, news)
        except EndpointError as error:
            log.info("%s was not told which artifacts were used: %s", self._endpoint.url, error)
            with self._lock:
                self._news = added(self._news, news)

    def close(self) -> None:
        """No further report by itself."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()

    def _begin(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._due)
        self._timer.name, self._timer.daemon = "precast-uses", True
        try:
            self._timer.start()
        except RuntimeError as error:  # the interpreter ends, or the system has no threads left
            self._timer = None
            log.info("uses are not told to %s: %s", self._endpoint.url, error)

    def _due(self) -> None:
        self.flush()
        with self._lock:
            if self._news or self._timer is not None:
                self._timer = None
            if self._news:
                self._begin(self._every)
