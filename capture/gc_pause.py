"""Pauses garbage collection during a compile, which makes many objects that live on and little garbage: collections took a fifteenth of
its time.

A full collection also visits everything else in the process, torch's and sympy's modules included, and takes a quarter to half a second.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from precast.runtime.common.locks import Lock

SELDOM = 100_000
"""New objects between two collections of the youngest generation; Python's default is 700, from 3.12 on 2,000 at most."""

NEVER = 2**31 - 1
"""Collections of the middle generation between two full ones."""

FEW = 1_000
"""Up to this many frozen objects are the interpreter's own (some hundreds from 3.12 on); a program that uses gc.freeze has ten thousands.
"""

_LOCK = Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds to restore once the last body has ended, once for each body that runs."""
_set: list[tuple[int, int, int]] = []
"""The thresholds that the first of these bodies set: where others are found at the end, other code has set them meanwhile."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """A context with fewer collections and no full one; the thresholds are restored once the last such context of any thread has ended.

    Objects made inside then count as old, as if a collection had visited them, so that the next full collection does not come in the
    first call. A collector that is off or has thresholds as high is left alone, and so are thresholds that other code sets meanwhile.
    """
    with _LOCK:
        mine = _begin()
    try:
        yield
    finally:
        if mine:
            with _LOCK:
                _end()


def _begin() -> bool:
    now = gc.get_threshold()
    if _before and now == _set[0]:
        _before.append(_before[0])
        return True
    if not 0 < now[0] < SELDOM:
        return False
    _before[:] = [now] * (len(_before) + 1)
    gc.set_threshold(SELDOM, now[1], NEVER)
    _set[:] = [gc.get_threshold()]  # not every Python keeps all three
    return True


def _end() -> None:
    before = _before.pop() if _before else None  # a fork has ended it
    if before is None or _before:
        return
    if gc.get_threshold() == _set[0]:
        gc.set_threshold(*before)
    _age()


def _age() -> None:
    """Moves all objects to the oldest generation, by freezing and thawing; not where the program has frozen objects, which would be
    thawed.
    """
    if gc.get_freeze_count() < FEW:
        gc.freeze()
        gc.unfreeze()


def _end_in_child() -> None:
    """Called in a forked child, which has no threads that trace: restores the thresholds."""
    if _before:
        if gc.get_threshold() == _set[0]:
            gc.set_threshold(*_before[0])
        _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)
