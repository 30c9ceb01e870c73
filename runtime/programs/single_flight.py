"""Single flight: of the processes that share a store and miss calls of one kind, one compiles, and the others wait for its artifact.

A turn is a lease (`artifact_store/local/leases.py`), named by the program's key and the kind of the call, that is taken before the call is
captured. A waiting process looks into the store whenever the program's folder changes, and stops waiting

* with an artifact that fits its call: the call is neither captured nor compiled;
* with the turn, where its holder died, or stored something that does not fit;
* without the turn, where the holder released it and stored nothing (otherwise all would wait, one after another, for a program that
  cannot be stored), after `OTHERS` holders whose artifacts do not fit, and after `PATIENCE` seconds.

A turn saves work; correctness does not depend on it. There are no deadlocks: a waiting thread holds neither a turn nor the tracer's lock,
and a compile inside of another compile does not wait.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from precast.artifact_store.local.leases import Lease, Watch, pauses
from precast.runtime.common.log import logger
from precast.runtime.paths.torch_state import global_state
from precast.runtime.programs.interfaces import Configured

_DEPTH = 4
_ITEMS = 64
"""How deep containers are searched, and how many of their items count."""
_BY_VALUE = (bool, type(None), str, bytes, torch.dtype, torch.device, torch.layout)
_NUMBERS = (int, float, complex)


def call_kind(local_values: Mapping[str, Any], of: tuple[str, ...], exact: bool) -> str:
    """A digest of the arguments' types and of torch's state during the call; the same in every process.

    `of`: further texts that tell calls apart. `exact`: sizes and numbers count, for programs without symbolic sizes. Two calls of one kind
    may need two artifacts, and calls of two kinds may share one: that costs time and nothing else.
    """
    whole = (of, sorted(global_state().items()), _items(local_values, exact, _DEPTH))
    return hashlib.sha256(repr(whole).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _items(values: Mapping[Any, Any], exact: bool, depth: int) -> list[Any]:
    first = list(values.items())[:_ITEMS]
    return [(key if type(key) in (str, int) else type(key).__qualname__, _kind(value, exact, depth - 1)) for key, value in first]


def _kind(value: Any, exact: bool, depth: int) -> Any:
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind in _NUMBERS:
        return value if exact else name
    if kind in _BY_VALUE:
        return value
    if isinstance(value, torch.Tensor):
        size = tuple(value.shape) if exact and not value.is_nested else value.dim()
        return name, str(value.dtype), value.device.type, str(value.layout), value.requires_grad, size
    if isinstance(value, torch.nn.Module):
        return name, value.training
    if kind in (tuple, list) and depth:
        return name, len(value), [_kind(item, exact, depth - 1) for item in value[:_ITEMS]]
    if kind is dict and depth:
        return name, len(value), _items(value, exact, depth)
    return name


PATIENCE = 600.0
"""Seconds after which a waiting process compiles without the turn."""
OTHERS = 2
"""How many holders' artifacts may not fit before a waiting process compiles: sizes that vary are symbolic from the second artifact on."""
_KEY_SHOWN = 100
"""Characters of a program's key in the names of its turns, which are file names and so limited in length."""
Served = Callable[[], bool]
_held: set[str] = set()
"""Paths of the leases that this process holds as turns; between its own threads the tracer's lock does the same."""


class _Here(threading.local):
    turn: Turn | None = None


_here = _Here()


class Turn:
    """The state of one call: it `waits` for another process, or may go on, with or without the turn.

    `kept`: the turn outlives the call, and is released when a compile in the background ends.
    """

    def __init__(self, program: Configured, watch: Watch | None) -> None:
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
        """Seconds since the wait began."""
        return self._watch.waited if self._watch is not None else 0.0

    def look(self, served: Served) -> bool:
        """Polls once; whether the call still has to wait. `served`: says whether something stored or loaded by now serves the call."""
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
            else:
                watch.leave()
        elif lease is not None:
            self._say(f"compiles now, after {watch.waited:.1f} s of waiting")
            self._take(lease)
        elif before != watch.holder:
            self._say(f"waits for {watch.who}, which compiles it")
        return self.waits

    def _why_go_on(self, watch: Watch, mine: bool, served: Served) -> str:
        """Why to stop waiting, by what holders did since the last poll; "" to go on waiting. `mine`: this process has the turn."""
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
        """Releases the lease."""
        lease, self._lease = self._lease, None
        if lease is not None:
            _held.discard(str(lease.path))
            lease.release()


def begin(program: Configured, local_values: Mapping[str, Any]) -> Turn:
    """A turn for this call; `wait` for it, or poll it by `look`."""
    return Turn(program, program.store.watch(name_of(program, local_values), program.key) if _is_wanted(program) else None)


def _is_wanted(program: Configured) -> bool:
    """Whether the compile will store something, and is not inside of another compile."""
    return program.backend is None and program.options["store_results"] and not program.store.readonly and _here.turn is None


def name_of(program: Configured, local_values: Mapping[str, Any]) -> str:
    """The name of the lease for calls of this kind."""
    kind = call_kind(local_values, (program.key, program.target), program.options["dynamic"] == "no")
    return f"{program.key[:_KEY_SHOWN]}-{kind}"


def wait(turn: Turn, served: Served) -> None:
    """Blocks until the turn does not wait any more."""
    rests = pauses()
    while turn.look(served):
        time.sleep(next(rests))


@contextmanager
def within(turn: Turn) -> Iterator[None]:
    """A context in which this thread compiles with the turn; the turn is released at its end unless it is kept."""
    outer, _here.turn = _here.turn, turn
    try:
        yield
    finally:
        _here.turn = outer
        if not turn.kept:
            turn.release()


def let_go() -> None:
    """Releases this thread's turn early, where what its compile makes is stored, or will not be: loading it is nobody else's business."""
    if _here.turn is not None:
        _here.turn.release()


def patience() -> float:
    """Seconds for which this call may still wait."""
    return max(1.0, PATIENCE - (_here.turn.waited if _here.turn is not None else 0.0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_held.clear)


__all__ = ["OTHERS", "PATIENCE", "Turn", "begin", "call_kind", "let_go", "name_of", "patience", "wait", "within"]
