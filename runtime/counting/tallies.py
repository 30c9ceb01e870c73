"""What is counted of programs in this process: compiles, which the recompile limits are about, and calls, which the statistics are.

As with torch.compile, all calls of `precast.compile` on one function with the same options count together, unless they were asked to be
isolated: what one of them stores serves the others. What cannot be stored serves its own program only, and counts for it alone.
"""

from __future__ import annotations

import _thread
import atexit
import os
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from precast.artifact_store import Manifest, Store

Shared = tuple[str, str]
"""Store and program key."""
_stored: Counter[Shared] = Counter()
_all: Counter[Shared] = Counter()


@dataclass(eq=False, repr=False)
class Compiles:
    """Of one program. `own`: compiles that no other program profits from."""

    own: int = 0

    def count(self, shared: Shared, stored: bool, isolated: bool, in_vain: bool = False) -> None:
        """Note one compile, or an attempt at it. `in_vain`: for a call that raises anyway, which counts for the accumulated limit only."""
        _all[shared] += 1
        if in_vain:
            return
        if stored and not isolated:
            _stored[shared] += 1
        else:
            self.own += 1

    def reached(self, shared: Shared, limit: int, accumulated: int, isolated: bool) -> str:
        """The limit that forbids another compile, with its value; empty where none does."""
        if self.own + (0 if isolated else _stored[shared]) >= limit:
            return f"recompile_limit ({limit})"
        return f"accumulated_recompile_limit ({accumulated})" if _all[shared] >= accumulated else ""

    def reset(self, shared: Shared) -> None:
        """Begin anew, for every program that shares the count."""
        self.own = 0
        _stored.pop(shared, None)
        _all.pop(shared, None)


FIRST, LATER = 60.0, 600.0
"""Seconds after which what was counted is written for the first time, and from then on; and once more when the process ends."""


class Tally:
    """The calls of one program in this process. It outlives the program, so that nothing that was counted is lost with it.

    A warm call adds one to one number, where Python sees it at all: the native dispatcher counts its calls anyway, and is asked for them
    when they are written (`write_counts.py`). `served`: calls of stored artifacts and of what this process compiled; `eager`: calls of a
    kind that runs eagerly; `bypassed`: calls that ran eagerly for the program's own `reason`, whose cause is `cause`; `used`: artifacts
    that served for the first time and are not written yet; `written`: the numbers when they were last written.
    """

    __slots__ = (
        *("__weakref__", "_native", "_owner", "_past", "bypassed", "cause", "eager", "name", "program_key", "reason"),
        *("served", "store", "used", "written"),
    )

    def __init__(self, owner: Any, store: Store, program_key: str, name: str) -> None:
        """`owner`: lives as long as the program."""
        self._owner = weakref.ref(owner)
        self.store = store
        self.program_key = program_key
        self.name = name
        self.served = self.eager = self.bypassed = 0
        self.cause = self.reason = ""
        self.used: list[Manifest] = []
        self._native: weakref.ref[Any] | None = None
        self._past = (0, 0)
        self.written = (0, 0, 0)
        tallies.append(self)

    @property
    def is_over(self) -> bool:
        """Whether the program is gone."""
        return self._owner() is None

    def numbers(self) -> tuple[int, int, int]:
        """Calls until now: of compiled code, of kinds that run eagerly, bypassed."""
        dispatcher = self._native() if self._native is not None else None
        calls, eager = self._past
        if dispatcher is not None:
            calls, eager = calls + dispatcher.hits, eager + dispatcher.eager
        return self.served + calls - eager, self.eager + eager, self.bypassed

    def use(self, manifest: Manifest | None) -> None:
        """An artifact of the store serves for the first time here."""
        if begin_writing() and manifest is not None:
            self.used.append(manifest)

    def dispatched_by(self, dispatcher: Any) -> None:
        """This native dispatcher calls the program from now on."""
        self._native = weakref.ref(dispatcher)

    def leave(self, dispatcher: Any) -> None:
        """The dispatcher is about to go: what it has counted stays."""
        self._past = (self._past[0] + dispatcher.hits, self._past[1] + dispatcher.eager)
        self._native = None

    def is_the_parents(self) -> None:
        """In a forked child: what was counted until now is for the parent to write."""
        self.written = self.numbers()
        self.used = []


tallies: list[Tally] = []
"""Of all programs of the process; `write_counts.py` takes out those whose program is gone, once they are written."""


class _Writes:
    begun = False
    record: Callable[[Any, tuple[Any, ...], Mapping[str, Any], bool], None] | None = None
    """Told of the calls that come the slow way, where calls are recorded (`record_calls.py`): (program, args, kwargs, whether it hit)."""
    forget: Callable[[], None] | None = None
    """What a forked child calls to forget what is counted elsewhere; set where anything is."""


writes = _Writes()


def begin_writing() -> bool:
    """From now on what is counted is written now and then, and when the process ends; False where PRECAST_STATS=0 forbids it."""
    if os.environ.get("PRECAST_STATS") == "0":
        return False
    if not writes.begun:
        writes.begun = True
        atexit.register(_write)
        _start_writer()
    return True


def _start_writer() -> None:
    try:
        _thread.start_new_thread(_write_now_and_then, ())
    except RuntimeError:
        return  # no thread can be started: what was counted is written when the process ends


def _write_now_and_then() -> None:
    time.sleep(FIRST)
    while writes.begun:
        _write()
        time.sleep(LATER)


def _write() -> None:
    from precast.runtime.counting.write_counts import write  # not on the warm path

    write()


def _in_child() -> None:
    """What the parent has counted is the parent's to write."""
    for tally in tallies:
        tally.is_the_parents()
    if writes.forget is not None:
        writes.forget()
    if writes.begun:
        _start_writer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)

__all__ = ["Compiles", "Tally", "begin_writing", "tallies", "writes"]
