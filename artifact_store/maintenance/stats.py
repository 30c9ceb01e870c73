"""Figures over a store: how much, of what, and how well it is used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from precast.artifact_store.maintenance.index import open_index
from precast.artifact_store.maintenance.policy import total_size
from precast.artifact_store.maintenance.scan import files, size_of
from precast.artifact_store.store import Store


@dataclass(frozen=True)
class Stats:
    """Sizes in bytes, times in unix seconds (None in an empty store). `saved`: what sharing blobs between artifacts spares.

    Where it is not known which artifacts were used, `uses_unknown` says why, and what is said of uses is None.
    """

    programs: int
    artifacts: int
    size: int
    saved: int
    hits: int | None
    never_used: int | None
    by_target: dict[str, int]
    quarantined: int
    quarantined_size: int
    disk_size: int
    oldest: float | None
    newest: float | None
    last_use: float | None
    uses_unknown: str = ""


def stats(store: Store) -> Stats:
    """Figures of `store`, from its index."""
    with open_index(store) as index:
        entries = index.entries(store)
    known = not index.problem
    size = total_size(entries)
    bad = files(store.root / "quarantine")
    return Stats(
        programs=len({entry.program_key for entry in entries}),
        artifacts=len(entries),
        size=size,
        saved=sum(entry.size for entry in entries) - size,
        hits=sum(entry.hits for entry in entries) if known else None,
        never_used=sum(entry.hits == 0 for entry in entries) if known else None,
        by_target=dict(sorted(Counter(entry.target for entry in entries).items())),
        quarantined=len(bad),
        quarantined_size=size_of(store.root / "quarantine"),
        disk_size=size_of(store.root),
        oldest=min((entry.created for entry in entries), default=None),
        newest=max((entry.created for entry in entries), default=None),
        last_use=max((entry.last_use for entry in entries if entry.hits), default=None) if known else None,
        uses_unknown=index.problem,
    )
