"""Locks that are released in a forked child: another thread of the parent may have held them, and it does not exist in the child."""

from __future__ import annotations

import os
import threading
import weakref

_all: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """A re-entrant lock for `with`, renewed in the child of a fork."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def try_enter(self, seconds: float = 0) -> bool:
        """Enter when no other thread is inside, or stays so for longer; whether that was so. Leave by `__exit__`, as after `with`."""
        return self._lock.acquire(timeout=seconds)

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def _renew() -> None:
    for lock in list(_all):
        lock._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
