"""Compiling makes many objects that last and little garbage: the collector looks at them all again and again, a fifteenth of the time.

A full collection looks at all that the process holds as well, torch's and sympy's modules included, and takes a quarter to half a second.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from precast.runtime.common.locks import Lock

SELDOM = 100_000
"""New objects between two collections of the youngest; Python's own number is 700, from 3.12 on 2,000 at most."""

NEVER = 2**31 - 1
"""Collections of the middle generation between two full ones."""

FEW = 1_000
"""Frozen objects that say nothing: from 3.12 on the interpreter freezes some hundreds of its own; a program that freezes, ten thousands."""

_LOCK = Lock()
_before: list[tuple[int, int, int]] = []
"""What holds again once the last body has ended, once for each body that runs."""
_set: list[tuple[int, int, int]] = []
"""What the first of these bodies made of it: where something else is found at the end, somebody has chosen it meanwhile."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Fewer collections for the body and no full one; what was set before holds again once the last body of any thread has ended.

    What was made is old then, as if a collection had passed over it: the next full one comes in its time, not in the first call. A
    collector that is off, or that was told to work as seldom, is left alone, and so are thresholds that somebody sets meanwhile.
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
    """All objects belong to the oldest generation; where somebody has frozen some, thawing would thaw those too."""
    if gc.get_freeze_count() < FEW:
        gc.freeze()
        gc.unfreeze()


def _end_in_child() -> None:
    """The threads that trace do not exist in a forked child."""
    if _before:
        if gc.get_threshold() == _set[0]:
            gc.set_threshold(*_before[0])
        _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)
