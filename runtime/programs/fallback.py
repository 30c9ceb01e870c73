"""Why a program runs as it was written: told once, and remembered in the store where that holds for every process."""

from __future__ import annotations

from precast.runtime.common.log import logger, warn
from precast.runtime.programs import skip_records
from precast.runtime.programs.interfaces import Configured


class Eagerly:
    """What keeps a program from compiling from now on. `skipped`: it stays plain Python itself, and what it calls is compiled."""

    def __init__(self, program: Configured) -> None:
        self._program = program
        self.reason = ""
        self.skipped = False
        self._warned: set[str] = set()

    def from_now_on(self, reason: str) -> None:
        """Further calls run eagerly, and a warning says why."""
        self.reason = reason
        self.warn("eager", reason)

    def skip(self, reason: str) -> None:
        """The program's own frame is not compiled."""
        self.skipped = True
        self.reason = f"is not compiled itself: {reason}"
        logger("graph_breaks").info("%s %s", self._program.name, self.reason)

    def remember(self, reason: str, graph: bool = False) -> None:
        """Spare other processes the attempt. `graph`: it could be compiled, and what came of it not be stored."""
        program = self._program
        if program.backend is None and program.options["store_results"]:
            skip_records.remember(program.store, program.key, reason, graph)

    def recall(self) -> None:
        """Skip what an earlier process found out to be no use."""
        reason = skip_records.recall(self._program.store, self._program.key, compiles=not self._program.require_hit)
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


__all__ = ["Eagerly"]
