"""Which artifacts go, and why: pure, over what the index says of them.

An artifact goes when **every** condition given holds for it (`program`, `target`, `older_than`, `unused_for`, `stale`). Then, with
`max_size`, the least recently used go until the rest fits. `keep_last` protects the most recently used artifacts of each program from all
of this; given alone, it removes all the others. With no condition no artifact goes. What is pinned stays whatever the policy says, and
counts for `keep_last` and `max_size` like the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from precast.artifact_store.format.manifest import Versions
from precast.artifact_store.format.text import human_days
from precast.artifact_store.maintenance.index import Entry
from precast.artifact_store.maintenance.pins import Pinned

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


def plan(entries: Sequence[Entry], policy: Policy, now: float, pinned: Pinned = NOTHING) -> list[Removal]:
    """The artifacts that go under `policy`, in the order of removal. Pure: the tests' table."""
    protected = _protected(entries, policy.keep_last)
    if pinned is not NOTHING:
        protected |= {entry.artifact_id for entry in entries if pinned.spares(entry.program_key, entry.artifact_id)}
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


__all__ = ["NOTHING", "Policy", "Removal", "matches", "plan", "total_size"]
