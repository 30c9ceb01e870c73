"""Pruning a local store: what the policy chooses goes, with the blobs that nothing else needs, and leftovers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.layout import blob_name
from precast.artifact_store.maintenance.garbage import GRACE, SKEW, Leftover, referenced, unused
from precast.artifact_store.maintenance.index import Entry, Index, open_index
from precast.artifact_store.maintenance.pins import Pinned, pinned
from precast.artifact_store.maintenance.policy import Policy, Removal, plan, total_size
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX

_WITHOUT_USES = "`--older-than`, `--target` and `--stale-versions` need no uses"
Choice = Callable[[Sequence[Entry], Pinned, float], list[Removal]]
"""Of all artifacts, with what is pinned and the time, those that go."""


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


def prune(store: Store, policy: Policy, *, dry_run: bool = False, now: float | None = None, grace: float = GRACE) -> Pruned:
    """Remove what `policy` says, then leftovers.

    Raises StoreError where the store cannot be written, or `policy` goes by uses and they are not known: then nothing is removed.
    """

    def choose(entries: Sequence[Entry], held: Pinned, moment: float) -> list[Removal]:
        return plan(entries, policy, moment, held)

    return carry_out(store, choose, dry_run, now, grace, by_use=policy.by_use)


def take_out(store: Store, artifact_ids: Collection[str], *, dry_run: bool = False) -> Pruned:
    """Remove these artifacts, with the blobs that only they need, and leftovers.

    Raises StoreError where the store cannot be written, or one of them is pinned: then nothing is removed.
    """

    def choose(entries: Sequence[Entry], held: Pinned, _: float) -> list[Removal]:
        going = [entry for entry in entries if entry.artifact_id in artifact_ids]
        if spared := [entry for entry in going if held.holds(entry.program_key, entry.artifact_id)]:
            one = spared[0]
            what = f"artifact {one.artifact_id[:12]} of {one.program_name} is" if len(spared) == 1 else f"{len(spared)} of them are"
            raise StoreError(f"nothing was removed: {what} pinned; `precast pins` says why, and `precast unpin` lets go")
        return [Removal(entry, "asked for") for entry in going]

    return carry_out(store, choose, dry_run, None, GRACE, by_use=False)


def carry_out(store: Store, choose: Choice, dry_run: bool, now: float | None, grace: float, by_use: bool) -> Pruned:
    """Remove what `choose` names, then leftovers. `by_use`: the choice needs to know which artifacts were used. Raises StoreError."""
    if store.readonly and not dry_run:
        raise StoreError(store.problem or f"the store at {store.root} was opened read-only; nothing was pruned")
    now = time.time() if now is None else now
    held = pinned(store)
    with open_index(store) as index:
        entries = index.entries(store)
        if index.problem and by_use:
            raise StoreError(f"nothing was pruned, since it is not known which artifacts were used: {index.problem}. {_WITHOUT_USES}")
        if index.began:
            entries = [replace(entry, last_use=max(entry.last_use, index.began)) for entry in entries]
        going = choose(entries, held, now)
        if not dry_run:
            remove(store, [removal.entry for removal in going], index)
    gone_names = {removal.entry.name for removal in going}
    known = {entry.name: entry.blobs for entry in entries if entry.name not in gone_names}
    # manifests that came since `entries` were listed count, those that were removed and stored again among them
    needed = referenced(store, known, gone_names if dry_run else ())
    freed: dict[str, int] = {}
    if needed is not None:
        freed = {blob: size for removal in going for blob, size in removal.entry.blobs.items() if blob not in needed}
    found = [file for file in unused(store, needed, grace) if file.path.name not in freed]
    due = [file for file in found if file.due <= now]
    size = sum(removal.entry.manifest_size for removal in going) + sum(file.size for file in due) + sum(freed.values())
    if not dry_run:
        blobs = {f"{store.root}/{blob_name(blob)}": length for blob, length in freed.items()}
        blobs |= {str(file.path): file.size for file in due if layout.is_digest(file.path.name)}
        size -= _sweep(store, blobs, known)
        _unlink([str(file.path) for file in due if str(file.path) not in blobs], store)
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


def remove(store: Store, entries: Sequence[Entry], index: Index) -> None:
    """Take these artifacts out, and their rows out of the index. Raises StoreError where one cannot be removed."""
    done: list[str] = []
    try:
        for entry in entries:
            store.remove(entry.artifact_id, entry.program_key)
            done.append(entry.artifact_id)
    finally:
        index.forget(done)


def _sweep(store: Store, files: Mapping[str, int], known: Mapping[str, Collection[str]]) -> int:
    """Take away blobs that nothing needed a moment ago; the bytes of those that stay.

    A writer that found one there names it in a manifest that comes only now, looks again after that, and writes anew what is missing. So
    each is moved aside first, the manifests are looked through once more, and what is named by then is moved back: whichever of the two
    was later sees the other. `known`: as for `referenced`.
    """
    aside: dict[str, str] = {}
    kept = 0
    for path, size in files.items():
        folder, name = os.path.split(path)
        moved = f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{name}"
        try:
            os.rename(path, moved)
        except FileNotFoundError:
            kept += size  # another prune was quicker
        except OSError as error:
            raise _cannot_remove(path, error, store) from error
        else:
            aside[path] = moved
    needed = referenced(store, known) if aside else set()
    for path, moved in aside.items():
        if needed is None or os.path.basename(path) in needed:
            kept += files[path]
            os.replace(moved, path)
        else:
            _unlink([moved], store)
    return kept


def _unlink(paths: Sequence[str], store: Store) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _cannot_remove(path, error, store) from error


def _cannot_remove(path: str, error: OSError, store: Store) -> StoreError:
    name = os.path.relpath(path, store.root)
    return StoreError(f"cannot remove {name}: {error.strerror or error}; {cure(error, store.root)}")


__all__ = ["Policy", "Pruned", "Removal", "carry_out", "plan", "prune", "take_out", "total_size"]
