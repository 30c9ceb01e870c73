"""The entries of a tier as the store reads and writes them: what cannot be read is a miss with a logged reason, never an exception, and
what is damaged is set aside; writing raises StoreError where the store may not be written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.origin import Origin
from precast.artifact_store.tiers.disk_errors import IN_THE_WAY
from precast.artifact_store.tiers.tier import Tier

log = logging.getLogger("precast.store")


class Entries:
    """`problem`: why the tier cannot be used at all; then everything is absent, and nothing is written."""

    def __init__(self, tier: Tier, *, readonly: bool, problem: str) -> None:
        self.tier = tier
        self.readonly = readonly
        self.problem = problem
        self._known_bad: set[str] = set()

    def origin(self, name: str) -> Origin:
        """Where the bytes under this name are from."""
        return Origin(self.tier.kind, self.tier.place, name)

    # -- reading

    def read(self, name: str) -> bytes | None:
        if self.problem:
            return None
        try:
            return self.tier.get(name)
        except OSError as error:
            self.miss(name, f"cannot be read ({error.strerror or error})")
            return None

    def names(self, prefix: str) -> list[str]:
        """Names of everything under a folder."""
        return [] if self.problem else self.tier.names(prefix)

    def listed(self, folder: str) -> list[str]:
        """Last parts of the names directly in a folder."""
        try:
            return self.tier.listed(folder) if not self.problem else []
        except OSError as error:
            self.miss(folder, f"cannot list the folder ({error.strerror})")
            return []

    def miss(self, name: str, reason: str) -> None:
        log.info("%s: miss: %s: %s", self.tier.place, name, reason)

    # -- damage

    def is_bad(self, name: str) -> bool:
        """Whether it was found damaged and could not be moved out of the way."""
        return name in self._known_bad

    def is_good(self, name: str) -> None:
        """It was read again, and is right."""
        self._known_bad.discard(name)

    def quarantine(self, name: str, reason: str) -> None:
        """Move a bad entry out of the way, or where the store cannot be written remember it as bad for this process."""
        if name in self._known_bad:
            return  # said before
        self._known_bad.add(name)
        done = self._set_aside(name)
        log.warning("%s: miss: %s; %s", self.tier.place, reason if reason.startswith(name) else f"{name}: {reason}", done)

    def _set_aside(self, name: str) -> str:
        """Move the entry to quarantine/ where that is possible, and say what came of it."""
        if self.readonly:
            return "ignored: the store is opened read-only"
        try:
            self.tier.set_aside(name)
        except OSError as error:
            return f"ignored in this process: it cannot be moved to quarantine/ ({error.strerror or error})"
        self._known_bad.discard(name)
        return "moved to quarantine/"

    # -- writing

    def write(self, put: Callable[[Tier], object], what: str) -> None:
        """Let `put` write to the tier. Raises StoreError where it cannot be written; `what` was then not stored."""
        self.check_allowed()
        try:
            self.prepare()
            put(self.tier)
        except OSError as error:
            raise StoreError(f"{self.unwritten(error)} ({what} not stored)") from error

    def check_allowed(self) -> None:
        """Raises StoreError where nothing may be written."""
        if self.problem:
            raise StoreError(self.problem)
        if self.readonly:
            raise StoreError(f"the store at {self.tier.place} was opened read-only")

    def prepare(self) -> None:
        """Make what the tier needs before its first content. Raises OSError and StoreError."""
        if problem := self.tier.problem():  # the folder may be another one than when it was opened
            raise StoreError(problem)
        self.tier.prepare()

    def unwritten(self, error: OSError) -> str:
        """That the store could not be written, as a sentence without its end."""
        at = f" ({error.filename})" if error.filename and isinstance(error, IN_THE_WAY) else ""
        return f"cannot write to the store at {self.tier.place}: {error.strerror or error}{at}"
