"""What in a store nothing can use any more: blobs without an artifact, leftovers of writers that were killed, leases of the dead."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import FutureFormat, RecordError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.maintenance.unreadable import unreadable
from precast.artifact_store.named_records import parse_record
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX, read_file

log = logging.getLogger("precast.store")

GRACE = 3600.0
"""Seconds. Younger leftovers may belong to a writer at work: blobs come before the manifest that names them."""
QUARANTINE_KEEP = 30 * 86400.0
SKEW = 3600.0
"""Seconds. What is dated further ahead of this machine's clock has no age that could be relied on."""


def referenced(store: Store) -> set[str] | None:
    """Digests that some artifact or named record needs; None when a newer precast's manifest, or one that cannot be read here, may need
    blobs that this one cannot see.
    """
    hidden = unreadable(store, ("programs", *layout.RECORD_KINDS))
    try:
        if not hidden:
            return _by_artifacts(store) | recorded(store)
    except FutureFormat:
        return None
    except OSError as error:
        hidden = {str(error.filename): error.strerror or str(error)}
    name, reason = next(iter(hidden.items()))
    log.warning("%s: %s cannot be read (%s); no blob counts as unneeded", store.root, name, reason)
    return None


def _by_artifacts(store: Store) -> set[str]:
    needed: set[str] = set()
    for name, data in _contents(store, (name for key in store.programs() for name in store.manifest_names(key))):
        try:
            needed.update(Manifest.from_bytes(data, name).blobs)
        except FutureFormat:
            raise
        except RecordError as error:
            log.info("%s: %s; its blobs count as unneeded", name, error)
    return needed


def recorded(store: Store) -> set[str]:
    """Digests that some named record needs. Raises OSError where one cannot be read."""
    needed: set[str] = set()
    names = (layout.record_name(kind, name) for kind in layout.RECORD_KINDS for name in store.record_names(kind))
    for name, data in _contents(store, names):
        try:
            needed.update(filter(layout.is_digest, parse_record(data, name).get("blobs", ())))
        except RecordError as error:
            log.info("%s: %s; its blobs count as unneeded", name, error)
    return needed


def _contents(store: Store, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Each file that is there. Raises OSError, of a disk that fails half-way say, with the file's name."""
    for name in names:
        try:
            data = read_file(store.path(name))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from error
        yield name, data


@dataclass(frozen=True)
class Leftover:
    """A file that nothing uses: why, and from when on it may go (unix seconds)."""

    path: Path
    reason: str
    due: float


def leftovers(store: Store, needed: set[str] | None, now: float | None = None, grace: float = GRACE) -> Iterator[tuple[Path, str]]:
    """Files that can go, each with the reason. `needed` as from `referenced` (None: no blob goes); younger than `grace` seconds stays."""
    now = time.time() if now is None else now
    return ((file.path, file.reason) for file in unused(store, needed, grace) if file.due <= now)


def unused(store: Store, needed: set[str] | None, grace: float = GRACE) -> Iterator[Leftover]:
    """All files that can go now or later."""
    killed = "left by a writer that was killed"
    for path in files(store.root / "objects"):
        if path.name.startswith(TEMPORARY_PREFIX):
            yield from _due(path, killed, grace)
        elif needed is not None and path.name not in needed:
            yield from _due(path, "blob that no artifact needs", grace)
    for folder in ("", "programs", *layout.RECORD_KINDS):
        for path in files(store.root / folder) if folder else store.root.glob(f"{TEMPORARY_PREFIX}*"):
            if path.name.startswith(TEMPORARY_PREFIX):
                yield from _due(path, killed, grace)
    for folder in ("programs", *layout.RECORD_KINDS):
        for path in files(store.root / folder):
            if path.name.endswith(layout.SIGNATURE_SUFFIX) and not path.with_suffix(layout.MANIFEST_SUFFIX).exists():
                yield from _due(path, "signatures of what is not there", grace)
    for path in files(store.root / "leases"):
        yield from _due(path, "lease of a dead process", grace)
    for path in files(store.root / "quarantine"):
        yield from _due(path, "damaged entry, quarantined over 30 days ago", max(grace, QUARANTINE_KEEP))


def _due(path: Path, reason: str, after: float) -> Iterator[Leftover]:
    moment = made(path)
    if moment is not None:
        yield Leftover(path, reason, moment + after)


def files(folder: Path) -> list[Path]:
    """All files under `folder`, sorted; none where it does not exist. Links to folders are not followed (`unreadable` names them)."""
    found = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if _is_file(path))


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it may be one: whoever reads it will hear why not


def file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def made(path: Path) -> float | None:
    """When a file was made, or last written; None where that cannot be seen."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
