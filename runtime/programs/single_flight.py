"""Turns: of the processes that share a store and miss calls of one kind, one compiles, and the others wait for what comes of it.

The turn is a lease (`artifact_store/local/leases.py`) that is taken before the call is captured, by the program's key and the kind of the
call. Who waits looks into the store whenever something was put there for the program, and goes on

* with what it finds, once it fits its call: the call is neither captured nor compiled;
* with the turn, where its holder died, or left something that does not fit;
* by itself, beside the others, where the holder let go without having stored anything (a program that cannot be stored would make all
  wait for one after another), after `OTHERS` holders whose results do not fit, and after `PATIENCE` seconds.

A turn saves work and guards nothing. Deadlocks there are none: who waits for one holds neither a turn nor the lock of the tracer, and who
comes to compile inside of a compile waits for nobody.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precast.artifact_store.local.leases import Lease, Watch, pauses
from precast.runtime.common.log import logger
from precast.runtime.programs.call_kind import call_kind

if TYPE_CHECKING:
    from precast.runtime.programs.program import Program

PATIENCE = 600.0
"""Seconds after which who waits compiles by itself."""
OTHERS = 2
"""Holders whose results did not fit, after which who waits compiles by itself: sizes that vary are symbolic from the second artifact on."""

_KEY_SHOWN = 100
"""Characters of a program's key with which the name of its turns begins: file names end, and keys of parts of programs are long."""

Served = Callable[[], bool]
_held: set[str] = set()
"""Paths of the leases that this process holds as turns: its own threads take turns by the lock of the tracer."""


class _Here(threading.local):
    turn: Turn | None = None


_here = _Here()


class Turn:
    """Where one call stands: it `waits` for another process, or may go on, holding the turn or not.

    `kept`: it outlives the call, and is released by who finishes the compile in the background.
    """

    def __init__(self, program: Program, watch: Watch | None) -> None:
        self.waits = watch is not None
        self.kept = False
        self._program = program
        self._watch = watch
        self._lease: Lease | None = None
        self._known = self._stored()
        self._released = self._misfits = 0
        self._fruitful = False

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return self._watch.waited if self._watch is not None else 0.0

    def look(self, served: Served) -> bool:
        """Whether it still waits, by one look. `served`: whether what is stored, or known of the program, serves the call."""
        watch = self._watch
        if not self.waits or watch is None:
            return False
        if str(watch.path) in _held:
            self.waits = False
            return False
        before, lease = watch.holder, watch.look()
        if lease is not None and not watch.holder:
            self._take(lease)
            return False
        go_on = self._why_go_on(watch, lease is not None, served)
        if go_on:
            self.waits = False
            self._say(f"{go_on} (after {watch.waited:.1f} s)")
            if lease is not None:
                lease.release()
        elif lease is not None:
            self._say(f"compiles now, after {watch.waited:.1f} s of waiting")
            self._take(lease)
        elif before != watch.holder:
            self._say(f"waits for {watch.who}, which compiles it")
        return self.waits

    def _why_go_on(self, watch: Watch, mine: bool, served: Served) -> str:
        """Why the turn is not wanted any more, by what its holders did since the last look; empty where it is. `mine`: it has come."""
        stored = self._stored()
        news, let_go = bool(stored - self._known), watch.released > self._released
        self._known, self._released = stored, watch.released
        fruitful = self._fruitful = self._fruitful or news
        if let_go:
            self._fruitful = False
            self._misfits += fruitful
        if (news or let_go or mine) and served():
            return f"goes on with what {watch.who} found"
        if let_go and not fruitful:
            return f"compiles by itself: {watch.who} stored nothing"
        if self._misfits >= OTHERS:
            return f"compiles by itself: what {self._misfits} others stored does not fit"
        return f"compiles by itself: {watch.who} does not come to an end" if watch.waited > PATIENCE and not mine else ""

    def _take(self, lease: Lease) -> None:
        self.waits = False
        lease.keep()
        if lease.held:
            self._lease = lease
            _held.add(str(lease.path))

    def _say(self, text: str) -> None:
        logger("store").info("%s: %s", self._program.name, text)

    def _stored(self) -> frozenset[str]:
        return frozenset(self._program.store.manifest_names(self._program.key)) if self.waits else frozenset()

    def release(self) -> None:
        """Let another process have it."""
        lease, self._lease = self._lease, None
        if lease is not None:
            _held.discard(str(lease.path))
            lease.release()


def begin(program: Program, local_values: Mapping[str, Any]) -> Turn:
    """The turn to compile for this call, to be looked after until it does not wait any more."""
    return Turn(program, program.store.watch(name_of(program, local_values)) if _is_wanted(program) else None)


def _is_wanted(program: Program) -> bool:
    """Whether anything will be stored, and this is no compile inside of another."""
    return program.backend is None and program.options["store_results"] and not program.store.readonly and _here.turn is None


def name_of(program: Program, local_values: Mapping[str, Any]) -> str:
    """Under which calls like this one take turns."""
    kind = call_kind(local_values, (program.key, program.target), program.options["dynamic"] == "no")
    return f"{program.key[:_KEY_SHOWN]}-{kind}"


def wait(turn: Turn, served: Served) -> None:
    """Return when the turn has come, or is not wanted any more."""
    rests = pauses()
    while turn.look(served):
        time.sleep(next(rests))


@contextmanager
def within(turn: Turn) -> Iterator[None]:
    """What this thread compiles in here it compiles in this turn, which ends with it where it is not kept."""
    outer, _here.turn = _here.turn, turn
    try:
        yield
    finally:
        _here.turn = outer
        if not turn.kept:
            turn.release()


def give_up() -> None:
    """Nothing will be stored of what this thread compiles: nobody needs to wait for it."""
    if _here.turn is not None:
        _here.turn.release()


def patience() -> float:
    """Seconds that are left to this call for waiting."""
    return max(1.0, PATIENCE - (_here.turn.waited if _here.turn is not None else 0.0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)

__all__ = ["OTHERS", "PATIENCE", "Turn", "begin", "give_up", "name_of", "patience", "wait", "within"]
