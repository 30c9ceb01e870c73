"""Compiling makes many objects that last and little garbage: the collector looks at them all again and again, a fifteenth of the time.

A full collection looks at all that the process holds as well, torch's and sympy's modules included, and takes a quarter to half a second.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from precast.runtime.locks import Lock

SELDOM = 100_000
"""New objects between two collections of the youngest; Python's own number is 700, from 3.12 on 2,000 at most."""

NEVER = 2**31 - 1
"""Collections of the middle generation between two full ones."""

FEW = 1_000
"""Frozen objects that say nothing: from 3.12 on the interpreter freezes some hundreds of its own; a program that freezes, ten thousands."""

_LOCK = Lock()
_before: list[tuple[int, int, int]] = []


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Fewer collections for the body and no full one; what was set before holds again once the last body of any thread has ended.

    What was made is old then, as if a collection had passed over it: the next full one comes in its time, not in the first call. A
    collector that is off, or that was told to work as seldom, is left alone.
    """
    with _LOCK:
        young, *older = gc.get_threshold()
        mine = bool(_before) or 0 < young < SELDOM
        if mine:
            _before.append(_before[0] if _before else (young, older[0], older[1]))
            gc.set_threshold(SELDOM, older[0], NEVER)
    try:
        yield
    finally:
        if mine:
            with _LOCK:
                before = _before.pop() if _before else None  # a fork has ended it
                if before is not None and not _before:
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
        gc.set_threshold(*_before[0])
        _before.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_end_in_child)
