"""A machine for tests: a local store with remotes behind it that tests hold in their hands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from precast.artifact_store import Store
from precast.artifact_store.remote.behind.local_side import LocalSide
from precast.artifact_store.remote.behind.remotes import Remotes
from precast.artifact_store.remote.program_index import Entry
from precast.artifact_store.remote.remote import Remote
from tests.artifact_store.remote.judges import Anything
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import make

KEY = "model-0123abcd"


class Everything:
    """Wants artifacts for any machine, and these records."""

    def __init__(self, *records: tuple[str, str]) -> None:
        self._records = records

    def order(self, entry: Entry) -> int | None:
        return 0

    def records(self, program_key: str) -> tuple[tuple[str, str], ...]:
        return self._records


def tier(url: str = "memory://near", **settings: Any) -> Remote:
    """A remote in memory, which accepts anything."""
    return Remote(MemoryEndpoint(url), **{"judge": Anything(), **settings})


def memory(remote: Remote) -> MemoryEndpoint:
    """Its endpoint."""
    assert isinstance(remote.endpoint, MemoryEndpoint)
    return remote.endpoint


class Machine:
    """`again`: seconds after which a program is asked for again."""

    def __init__(self, root: Path, *tiers: Remote, again: float = 30.0) -> None:
        self.store = Store(root, remote=())
        self.remotes = Remotes(tiers, LocalSide(self.store, self.store._entries, self.store._records), again)
        self.store._remotes, self.store._remotes_known = self.remotes, True

    def put(self, number: int = 0) -> str:
        """Stores a sample."""
        return self.store.put(*make(number))

    def sent(self, seconds: float = 10.0) -> bool:
        """Waits until what was stored is sent."""
        return self.remotes.uploads.flush(seconds)

    def look(self, key: str = KEY, wants: Any = None) -> float:
        """Waits for the news as a call would; how long it took."""
        began = time.monotonic()
        for _ in self.remotes.look(key, wants or Everything()).news(self.remotes.seconds()):
            pass
        return time.monotonic() - began
