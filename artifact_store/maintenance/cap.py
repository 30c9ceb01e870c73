"""A limit of a store's size that keeps itself, where one was asked for (`local/size_limit.py`): after a put, in a thread of its own.

Least recently used artifacts go until the store takes nine tenths of the limit, so that not every put has to do it again. Never what is
pinned, what is still to be sent to a remote, what was made or used in the last minutes. Where it is not known which artifacts were used
nothing goes, and the log says so.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.maintenance.garbage import GRACE
from precast.artifact_store.maintenance.index import Entry
from precast.artifact_store.maintenance.pins import Pinned
from precast.artifact_store.maintenance.policy import Policy, Removal, plan
from precast.artifact_store.maintenance.prune import Pruned, carry_out
from precast.artifact_store.maintenance.scan import size_of
from precast.artifact_store.store import Store

log = logging.getLogger("precast.store")

RECENT = 600.0
"""Seconds for which what was made or used stays."""
LOW = 0.9
EVERY = 30.0
"""Seconds between two looks of one process."""
LEASE = "size-limit"

_lock = threading.Lock()
_next: dict[Path, float] = {}
_running: dict[Path, threading.Thread] = {}


def after_put(store: Store, limit: int) -> threading.Thread | None:
    """Look at the size of a store into which something was put; returns at once. The thread, where one was begun."""
    with _lock:
        now = time.monotonic()
        if store.root in _running and _running[store.root].is_alive():
            return None
        wait = max(0.0, _next.get(store.root, 0.0) - now)
        _next[store.root] = now + wait + EVERY
        thread = threading.Thread(target=_look, args=(store, limit, wait), name="precast-size-limit", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter ends, or the system has no threads left
            log.info("the store at %s is not held to its size now: %s", store.root, error)
            return None
        _running[store.root] = thread
        return thread


def hold(store: Store, limit: int, now: float | None = None) -> Pruned | None:
    """Evict what the limit asks for; None where the store is smaller, or another process is about it. Raises StoreError."""
    size = sum(size_of(store.path(folder)) for folder in (layout.OBJECTS, layout.PROGRAMS))
    if size <= limit:
        return None

    def choose(entries: Sequence[Entry], held: Pinned, moment: float) -> list[Removal]:
        young = {entry.artifact_id for entry in entries if moment - max(entry.created, entry.last_use) < RECENT}
        return plan(entries, Policy(max_size=int(limit * LOW)), moment, held.sparing(young))

    watch = store.watch(LEASE)
    lease = watch.look() if watch is not None else None
    if lease is None:
        log.info("the store at %s is over its limit, and another process is about it", store.root)
        return None
    lease.keep()
    try:
        done = carry_out(store, choose, dry_run=False, now=now, grace=GRACE, by_use=True)
    finally:
        lease.release()
    said = f"{len(done.removed)} artifacts and {len(done.leftovers)} leftovers were removed, {done.freed} bytes"
    log.info("the store at %s took %d bytes, and its limit is %d: %s", store.root, size, limit, said)
    return done


def _look(store: Store, limit: int, wait: float) -> None:
    time.sleep(wait)
    try:
        hold(store, limit)
    except (StoreError, OSError) as error:
        log.warning("the store at %s could not be held to its limit of %d bytes: %s", store.root, limit, error)


def _forget_threads() -> None:
    """A forked child has none of its parent's threads, and a lock that another may have held."""
    global _lock
    _lock = threading.Lock()
    _running.clear()


os.register_at_fork(after_in_child=_forget_threads)
