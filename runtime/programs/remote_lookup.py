"""A miss beyond this machine: what the store's remotes have for a program, fetched while the call waits for a stated time at most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from precast.artifact_store import Store
from precast.runtime.common.log import logger
from precast.runtime.loading.compatibility import why_unfit
from precast.runtime.native import build, loader
from precast.runtime.programs import fallback
from precast.runtime.programs.interfaces import Configured
from precast.runtime.targets.ladder import ladder_of, rank, serves

if TYPE_CHECKING:
    from precast.artifact_store.remote.program_index import Entry

Found = TypeVar("Found")


@dataclass(frozen=True)
class Wants:
    """What a machine wants of a program for `target`, and of its parts: `remotes.Wants`. Runs no user's code."""

    target: str

    def order(self, entry: Entry) -> int | None:
        """How well an artifact suits: first those that this machine runs, best first; then those that a build for the target makes."""
        if not why_unfit(entry):
            return rank(entry.target) or 0
        if serves(self.target, entry.target) and not why_unfit(entry, elsewhere=True):
            return len(ladder_of(self.target))
        logger("runtime").info("a remote's %s is of no use here: %s", entry.artifact_id[:12], why_unfit(entry))
        return None

    def records(self, program_key: str) -> list[tuple[str, str]]:
        """Why it is not compiled, where that is so; and the native runtime, which a machine without a compiler cannot make."""
        native = [("native", build.record_name())] if loader.wanted() else []
        return [("skips", fallback.record_name(program_key)), *native]


def brought(program: Configured, found: Callable[[], Found | None]) -> Found | None:
    """What `found` finds, looked for again whenever remotes have brought something; None where they bring nothing that serves, or nothing
    within their budgets.
    """
    return brought_for(program.store, program.key, program.target, found) if program.backend is None else None


def brought_for(store: Store, program_key: str, target: str, found: Callable[[], Found | None]) -> Found | None:
    """The same, for what is compiled for `target` (resolved) under this key."""
    remotes = store.remotes
    if remotes is None:
        return None
    look = remotes.look(program_key, Wants(target))
    for _ in look.news(remotes.seconds()):
        loader.find(store)
        if result := found():
            return result
    return None


def bring(program: Configured) -> None:
    """Waits, within the budgets, for all that remotes have of the program."""
    brought(program, lambda: None)


def ask(program: Configured) -> None:
    """Asks remotes for the program where they were not asked of late, and waits for nothing."""
    remotes = program.store.remotes
    if remotes is not None and program.backend is None:
        remotes.look(program.key, Wants(program.target))


def is_under_way(program: Configured) -> bool:
    """Whether remotes are still asked for the program, so that a later call may find what this one did not."""
    remotes = program.store.remotes
    return remotes is not None and program.backend is None and not remotes.look(program.key, Wants(program.target)).is_over


def unfit(program: Configured) -> list[tuple[str, Entry]]:
    """What remotes have of the program and this machine cannot use, each with the remote's place; empty where one has something else."""
    remotes = program.store.remotes
    held = remotes.unsuitable(program.key) if remotes is not None else {}
    return [(place, entry) for place, entries in held.items() for entry in entries]


def said(program: Configured) -> str:
    """What remotes said of the program, a line for people; empty where there are none."""
    remotes = program.store.remotes
    text = remotes.said(program.key) if remotes is not None else ""
    reasons = sorted({f"; {place}: {reason}" for place, entry in unfit(program) if (reason := why_unfit(entry))})
    return f"Beyond the store: {text}{''.join(reasons)}" if text else ""


__all__ = ["Wants", "ask", "bring", "brought", "brought_for", "is_under_way", "said", "unfit"]
