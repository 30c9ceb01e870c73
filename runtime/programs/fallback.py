"""Why a program runs as it was written: told once, and remembered in the store where that holds for every process."""

from __future__ import annotations

import hashlib

from precast.artifact_store import Store, StoreError
from precast.runtime.common.log import logger, warn
from precast.runtime.counting.tallies import Tally
from precast.runtime.programs import fallback
from precast.runtime.programs.interfaces import Configured
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor


class Eagerly:
    """What keeps a program from compiling from now on. `skipped`: it stays plain Python itself, and what it calls is compiled."""

    def __init__(self, program: Configured, tally: Tally) -> None:
        self._program = program
        self._tally = tally
        self.reason = ""
        self.skipped = False
        self._warned: set[str] = set()

    def from_now_on(self, reason: str, cause: str = "eager by refusal") -> None:
        """Further calls run eagerly, and a warning says why. `cause`: as statistics call it."""
        self.reason = self._tally.reason = reason
        self._tally.cause = cause
        self.warn("eager", reason)

    def skip(self, reason: str) -> None:
        """The program's own frame is not compiled."""
        self.skipped = True
        self.reason = self._tally.reason = f"is not compiled itself: {reason}"
        self._tally.cause = ""
        logger("graph_breaks").info("%s %s", self._program.name, self.reason)

    def remember(self, reason: str, graph: bool = False) -> None:
        """Spare other processes the attempt. `graph`: it could be compiled, and what came of it not be stored."""
        program = self._program
        if program.backend is None and program.options["store_results"]:
            fallback.remember(program.store, program.key, reason, graph)

    def recall(self) -> None:
        """Skip what an earlier process found out to be no use."""
        reason = fallback.recall(self._program.store, self._program.key, compiles=not self._program.require_hit)
        if reason:
            self.skip(reason)

    def warn(self, kind: str, message: str) -> None:
        """One warning of each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            warn(f"precast: {self._program.name} {message}")

    def clear(self) -> None:
        """Try again, and warn again."""
        self._warned.clear()
        self.reason = ""
        self.skipped = False


def record_name(key: str) -> str:
    """The name of the record that says why the program of this key is not compiled."""
    return hashlib.sha256(repr((key, LOWERING_VERSION, torch_minor(), python_minor())).encode()).hexdigest()[:40]


def remember(store: Store, key: str, reason: str, graph: bool = False) -> None:
    """Record that the program of this key runs as plain Python, and why. `graph`: it was compiled, but the result could not be stored."""
    if store.readonly:
        return
    try:
        store.put_record("skips", record_name(key), {"program": key, "reason": reason, "graph": graph})
    except StoreError as error:
        logger("runtime").info("%s: that it is not compiled itself was not stored: %s", key, error)


def recall(store: Store, key: str, compiles: bool) -> str:
    """Why the program of this key runs as plain Python; "" without a record. `compiles`: this process may compile it for itself only."""
    record = store.record("skips", record_name(key))
    if record is None or record.get("program") != key or (record.get("graph") and compiles):
        return ""
    reason = record.get("reason")
    return reason if isinstance(reason, str) else ""


__all__ = ["Eagerly", "recall", "record_name", "remember"]
