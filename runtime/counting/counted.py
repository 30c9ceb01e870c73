"""What counting and recording need of a program, as Protocols: `Program` has all of this."""

from __future__ import annotations

from typing import Protocol

from precast.artifact_store import Store
from precast.runtime.frames.entry import Entry


class Counted(Protocol):
    """A program's names and where its counts go."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def key(self) -> str:
        """Its folder in the store."""

    @property
    def store(self) -> Store:
        """Where its artifacts are."""


class Called(Counted, Protocol):
    """A program whose calls are recorded."""

    @property
    def entry(self) -> Entry:
        """The function that is called, with the arguments that precede the user's."""


__all__ = ["Called", "Counted"]
