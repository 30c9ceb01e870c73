"""Pruning: which artifacts go, why, and what that frees.

An artifact goes when **every** condition given holds for it (`target`, `older_than`, `unused_for`, `stale`). Then, with `max_size`, the
least recently used go until the store fits. `keep_last` protects the most recently used artifacts of each program from all of this;
given alone, it removes all the others. With no condition only leftovers go (see `collect`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.layout import blob_name
from precast.artifact_store.format.manifest import Versions
from precast.artifact_store.format.text import human_days
from precast.artifact_store.maintenance.garbage import GRACE, SKEW, Leftover, file_size, recorded, referenced, unused
from precast.artifact_store.maintenance.index import Entry, open_index
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure


@dataclass(frozen=True)
class Policy:
    """What to remove. Sizes in bytes, times in seconds; `target` may hold `*`; `stale` says why an artifact's versions are old, or ""."""

    max_size: int | None = None
    older_than: float | None = None
    unused_for: float | None = None
    target: str | None = None
    stale: Callable[[Versions], str] | None = None
    keep_last: int | None = None

    @property
    def by_use(self) -> bool:
        """Whether it has to be known which artifacts were used."""
        return any(part is not None for part in (self.unused_for, self.max_size, self.keep_last))

    @property
    def selects(self) -> bool:
        return any(part is not None for part in (self.older_than, self.unused_for, self.target, self.stale))


@dataclass(frozen=True)
class Removal:
    """One artifact that goes, with the reason in words."""

    entry: Entry
    reason: str


@dataclass(frozen=True)
class Pruned:
    """What a prune did, or with `dry_run` would do. Sizes in bytes; `used`: how many artifacts have a counted use.

    `targets`: what there were artifacts for. `young`: leftovers that may still be a writer's at work. `began`: since when uses are known
    (0: always). `ahead`: by how many seconds each artifact that is dated ahead of this machine's clock is so.
    """

    removed: tuple[Removal, ...]
    leftovers: tuple[tuple[str, str], ...]
    freed: int
    kept: int
    size_before: int
    used: int
    dry_run: bool
    targets: tuple[str, ...] = ()
    young: tuple[Leftover, ...] = ()
    began: float = 0.0
    ahead: tuple[float, ...] = ()


def plan(entries: Sequence[Entry], policy: Policy, now: float) -> list[Removal]:
    """The artifacts that go under `policy`, in the order of removal. Pure: the tests' table."""
    protected = _protected(entries, policy.keep_last)
    candidates = [entry for entry in entries if entry.artifact_id not in protected]
    only_keep_last = policy.keep_last is not None and not policy.selects and policy.max_size is None
    going: list[Removal] = []
    for entry in candidates if policy.selects or only_keep_last else []:
        reason = f"not among the {policy.keep_last} most recently used of its program" if only_keep_last else _why(entry, policy, now)
        if reason:
            going.append(Removal(entry, reason))
    if policy.max_size is not None:
        gone = {removal.entry.artifact_id for removal in going}
        rest = [entry for entry in entries if entry.artifact_id not in gone]
        going += _evict(rest, protected, policy.max_size)
    return going


def prune(store: Store, policy: Policy, *, dry_run: bool = False, now: float | None = None, grace: float = GRACE) -> Pruned:
    """Remove what `policy` says, then leftovers.

    Raises StoreError where the store cannot be written, or `policy` goes by uses and they are not known: then nothing is removed.
    """
    if store.readonly and not dry_run:
        raise StoreError(store.problem or f"the store at {store.root} was opened read-only; nothing was pruned")
    now = time.time() if now is None else now
    with open_index(store) as index:
        entries = index.entries(store)
        if index.problem and policy.by_use:
            raise StoreError(f"nothing was pruned, since it is not known which artifacts were used: {index.problem}. {_WITHOUT_USES}")
        if index.began:
            entries = [replace(entry, last_use=max(entry.last_use, index.began)) for entry in entries]
        going = plan(entries, policy, now)
        needed_before = referenced(store)
        kept_by_records = recorded(store) if needed_before is not None else set()
        gone = {removal.entry.artifact_id for removal in going}
        if not dry_run:
            for removal in going:
                store.remove(removal.entry.artifact_id, removal.entry.program_key)
                index.forget(removal.entry.artifact_id)
    staying = {blob for entry in entries if entry.artifact_id not in gone for blob in entry.blobs}
    freed_blobs = {blob for removal in going for blob in removal.entry.blobs} - staying - kept_by_records
    orphaned = sorted(freed_blobs) if needed_before is not None else []
    blobs = [store.path(blob_name(blob)) for blob in orphaned]
    found = list(unused(store, needed_before, grace))
    rest = [(file.path, file.reason) for file in found if file.due <= now]
    freed = sum(removal.entry.manifest_size for removal in going) + sum(map(file_size, [*blobs, *(path for path, _ in rest)]))
    if not dry_run:
        _unlink([*blobs, *(path for path, _ in rest)], store)
    named_rest = tuple((path.relative_to(store.root).as_posix(), reason) for path, reason in rest)
    used = sum(entry.hits > 0 for entry in entries)
    targets = tuple(sorted({entry.target for entry in entries}))
    young = tuple(file for file in found if file.due > now and file.path.parent.name != "quarantine")
    ahead = tuple(entry.created - now for entry in entries if entry.created - now > SKEW and entry.artifact_id not in gone)
    kept = len(entries) - len(going)
    return Pruned(tuple(going), named_rest, freed, kept, total_size(entries), used, dry_run, targets, young, index.began, ahead)


_WITHOUT_USES = "`--older-than`, `--target` and `--stale-versions` need no uses"


def total_size(entries: Sequence[Entry]) -> int:
    """Bytes on disk of these artifacts; a blob that several share counts once."""
    blobs = {blob: size for entry in entries for blob, size in entry.blobs.items()}
    return sum(entry.manifest_size for entry in entries) + sum(blobs.values())


def _protected(entries: Sequence[Entry], keep_last: int | None) -> set[str]:
    if not keep_last:
        return set()
    programs: dict[str, list[Entry]] = {}
    for entry in entries:
        programs.setdefault(entry.program_key, []).append(entry)
    newest_first = (sorted(group, key=_recency, reverse=True) for group in programs.values())
    return {entry.artifact_id for group in newest_first for entry in group[:keep_last]}


def _recency(entry: Entry) -> tuple[float, float, str]:
    return (entry.last_use, entry.created, entry.artifact_id)


def _why(entry: Entry, policy: Policy, now: float) -> str:
    """Why every given condition holds, or "" when one does not."""
    reasons: list[str] = []
    if policy.target is not None:
        if not fnmatchcase(entry.target, policy.target):
            return ""
        reasons.append(f"for target {entry.target}")
    if policy.older_than is not None:
        if now - entry.created <= policy.older_than:
            return ""
        reasons.append(f"made {human_days(now - entry.created)} ago")
    if policy.unused_for is not None:
        if now - entry.last_use <= policy.unused_for:
            return ""
        reasons.append(f"last used {human_days(now - entry.last_use)} ago")
    if policy.stale is not None:
        old = policy.stale(entry.versions)
        if not old:
            return ""
        reasons.append(old)
    return ", ".join(reasons)


def _evict(entries: Sequence[Entry], protected: set[str], max_size: int) -> list[Removal]:
    """Least recently used first, until the rest fits into `max_size` bytes."""
    users = Counter(blob for entry in entries for blob in entry.blobs)
    size = total_size(entries)
    going: list[Removal] = []
    for entry in sorted(entries, key=_recency):
        if size <= max_size:
            break
        if entry.artifact_id in protected:
            continue
        users.subtract(entry.blobs.keys())
        size -= entry.manifest_size + sum(length for blob, length in entry.blobs.items() if users[blob] == 0)
        going.append(Removal(entry, "least recently used, over the size limit"))
    return going


def _unlink(paths: Sequence[Path], store: Store) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            why = f"{error.strerror or error}; {cure(error, store.root)}"
            raise StoreError(f"cannot remove {path.relative_to(store.root)}: {why}") from error
