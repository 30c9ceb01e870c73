"""Pruning: which artifacts go, why, and what that frees.

An artifact goes when **every** condition given holds for it (`target`, `older_than`, `unused_for`, `stale`). Then, with `max_size`, the
least recently used go until the store fits. `keep_last` protects the most recently used artifacts of each program from all of this;
given alone, it removes all the others. With no condition only leftovers go (see `garbage`). What is pinned stays whatever the policy says,
and counts for `keep_last` and `max_size` like the rest.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.layout import blob_name
from precast.artifact_store.format.manifest import Versions
from precast.artifact_store.format.text import human_days
from precast.artifact_store.maintenance.garbage import GRACE, SKEW, Leftover, referenced, unused
from precast.artifact_store.maintenance.index import Entry, Index, open_index
from precast.artifact_store.maintenance.pins import Pinned, pinned
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure

NOTHING = Pinned()
"""No pins at all."""


@dataclass(frozen=True)
class Policy:
    """What to remove. Sizes in bytes, times in seconds; `target` may hold `*`; `stale` says why an artifact's versions are old, or "";
    `program` is a part of a program's key or name.
    """

    max_size: int | None = None
    older_than: float | None = None
    unused_for: float | None = None
    target: str | None = None
    stale: Callable[[Versions], str] | None = None
    keep_last: int | None = None
    program: str | None = None

    @property
    def by_use(self) -> bool:
        """Whether it has to be known which artifacts were used."""
        return any(part is not None for part in (self.unused_for, self.max_size, self.keep_last))

    @property
    def selects(self) -> bool:
        return any(part is not None for part in (self.older_than, self.unused_for, self.target, self.stale, self.program))


@dataclass(frozen=True)
class Removal:
    """One artifact that goes, with the reason in words."""

    entry: Entry
    reason: str


@dataclass(frozen=True)
class Pruned:
    """What a prune did, or with `dry_run` would do. Sizes in bytes; `used`: how many artifacts have a counted use.

    `targets`: what there were artifacts for. `young`: leftovers that may still be a writer's at work. `began`: since when uses are known
    (0: always). `ahead`: by how many seconds each artifact that is dated ahead of this machine's clock is so. `pinned`: how many are.
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
    pinned: int = 0


def plan(entries: Sequence[Entry], policy: Policy, now: float, pinned: Pinned = NOTHING) -> list[Removal]:
    """The artifacts that go under `policy`, in the order of removal. Pure: the tests' table."""
    protected = _protected(entries, policy.keep_last)
    if pinned is not NOTHING:
        protected |= {entry.artifact_id for entry in entries if pinned.holds(entry.program_key, entry.artifact_id)}
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
    started = time.time()
    now = started if now is None else now
    held = pinned(store)
    with open_index(store) as index:
        entries = index.entries(store)
        if index.problem and policy.by_use:
            raise StoreError(f"nothing was pruned, since it is not known which artifacts were used: {index.problem}. {_WITHOUT_USES}")
        if index.began:
            entries = [replace(entry, last_use=max(entry.last_use, index.began)) for entry in entries]
        going = plan(entries, policy, now, held)
        if not dry_run:
            remove(store, [removal.entry for removal in going], index)
    freed, found = _unneeded(store, entries, going, grace, dry_run)
    due = [file for file in found if file.due <= now]
    size = sum(removal.entry.manifest_size for removal in going) + sum(file.size for file in due) + sum(freed.values())
    if not dry_run:
        size -= unlink_blobs(store, freed, started)
        _unlink([file.path for file in due], store)
    gone = {removal.entry.artifact_id for removal in going}
    return Pruned(
        tuple(going),
        tuple((file.path.relative_to(store.root).as_posix(), file.reason) for file in due),
        size,
        len(entries) - len(going),
        total_size(entries),
        sum(entry.hits > 0 for entry in entries),
        dry_run,
        tuple(sorted({entry.target for entry in entries})),
        tuple(file for file in found if file.due > now and file.path.parent.name != layout.QUARANTINE),
        index.began,
        tuple(entry.created - now for entry in entries if entry.created - now > SKEW and entry.artifact_id not in gone),
        sum(held.holds(entry.program_key, entry.artifact_id) for entry in entries),
    )


def _unneeded(
    store: Store, entries: Sequence[Entry], going: Sequence[Removal], grace: float, dry_run: bool
) -> tuple[dict[str, int], list[Leftover]]:
    """Once the artifacts `going` are removed, or would be: digests that nothing but they needed, with their sizes; and all leftovers.

    Manifests that came since `entries` were listed count, those among them that were removed and stored again.
    """
    gone = {removal.entry.name for removal in going}
    needed = referenced(store, {entry.name: entry.blobs for entry in entries if entry.name not in gone}, gone if dry_run else ())
    freed: dict[str, int] = {}
    if needed is not None:
        freed = {blob: size for removal in going for blob, size in removal.entry.blobs.items() if blob not in needed}
    return freed, [file for file in unused(store, needed, grace) if file.path.name not in freed]


def remove(store: Store, entries: Sequence[Entry], index: Index) -> None:
    """Take these artifacts out, and their rows out of the index. Raises StoreError where one cannot be removed."""
    done: list[str] = []
    try:
        for entry in entries:
            store.remove(entry.artifact_id, entry.program_key)
            done.append(entry.artifact_id)
    finally:
        index.forget(done)


def unlink_blobs(store: Store, blobs: Mapping[str, int], started: float) -> int:
    """Unlink blobs that nothing needed at the moment `started`; the bytes of those that stay. Those stay that a writer has renewed since
    then: it has found them there, and its manifest may come any moment.
    """
    kept = 0
    for blob, size in blobs.items():
        path = f"{store.root}/{blob_name(blob)}"
        try:
            if os.stat(path).st_mtime > started:
                kept += size
                continue
            os.unlink(path)
        except FileNotFoundError:
            kept += size
        except OSError as error:
            raise _cannot_remove(path, error, store) from error
    return kept


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


def matches(entry: Entry, program: str) -> bool:
    """Whether an artifact belongs to a program that is meant: by a part of its key or its name, as `ls` looks for them."""
    return program in entry.program_key or program in entry.program_name


def _recency(entry: Entry) -> tuple[float, float, str]:
    return (entry.last_use, entry.created, entry.artifact_id)


def _why(entry: Entry, policy: Policy, now: float) -> str:
    """Why every given condition holds, or "" when one does not."""
    reasons: list[str] = []
    if policy.program is not None:
        if not matches(entry, policy.program):
            return ""
        reasons.append(f"of program {entry.program_name}")
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
            raise _cannot_remove(path, error, store) from error


def _cannot_remove(path: str | Path, error: OSError, store: Store) -> StoreError:
    name = os.path.relpath(path, store.root)
    return StoreError(f"cannot remove {name}: {error.strerror or error}; {cure(error, store.root)}")
