"""What in a store nothing can use any more: blobs without an artifact, leftovers of writers that were killed, leases of the dead."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import FutureFormat, RecordError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.maintenance.scan import manifest_files, status, top, walk
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


def referenced(store: Store, known: Mapping[str, Collection[str]] | None = None, gone: Collection[str] = ()) -> set[str] | None:
    """Digests that some artifact or named record needs; None when a newer precast's manifest, or one that cannot be read here, may need
    blobs that this one cannot see.

    `known`: the blobs of manifests that were read a moment ago, by the files' names. All others are read, but those whose blobs were known
    and that are `gone`, or would be.
    """
    hidden = unreadable(store, ("programs", *layout.RECORD_KINDS))
    try:
        if not hidden:
            return _by_artifacts(store, known or {}, gone) | recorded(store)
    except FutureFormat:
        return None
    except OSError as error:
        hidden = {str(error.filename): error.strerror or str(error)}
    name, reason = next(iter(hidden.items()))
    log.warning("%s: %s cannot be read (%s); no blob counts as unneeded", store.root, name, reason)
    return None


def _by_artifacts(store: Store, known: Mapping[str, Collection[str]], gone: Collection[str]) -> set[str]:
    needed: set[str] = set()
    there = [name for seen in manifest_files(store) if (name := seen.name) not in gone]
    for name in there:
        needed.update(known.get(name, ()))
    for name, data in _contents(store, (name for name in there if name not in known)):
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
    """A file that nothing uses: why, from when on it may go (unix seconds), and how large it is."""

    path: Path
    reason: str
    due: float
    size: int


def unused(store: Store, needed: Collection[str] | None, grace: float = GRACE) -> Iterator[Leftover]:
    """All files that can go now or later, `grace` seconds after they were made. `needed` as from `referenced` (None: no blob goes)."""
    killed = "left by a writer that was killed"
    for entry in walk(store.root / "objects"):
        if entry.name.startswith(TEMPORARY_PREFIX):
            yield from _due(entry, killed, grace)
        elif needed is not None and entry.name not in needed:
            yield from _due(entry, "blob that no artifact needs", grace)
    for folder in ("programs", *layout.RECORD_KINDS, layout.PINS):
        for entry in walk(store.root / folder):
            if entry.name.startswith(TEMPORARY_PREFIX):
                yield from _due(entry, killed, grace)
            elif entry.name.endswith(layout.SIGNATURE_SUFFIX) and not os.path.exists(_document(entry.path)):
                yield from _due(entry, "signatures of what is not there", grace)
    for entry in top(store.root):
        if entry.name.startswith(TEMPORARY_PREFIX):
            yield from _due(entry, killed, grace)
    for entry in walk(store.root / "leases"):
        yield from _due(entry, "lease of a dead process", grace)
    for entry in walk(store.root / "quarantine"):
        yield from _due(entry, "damaged entry, quarantined over 30 days ago", max(grace, QUARANTINE_KEEP))


def _document(signatures: str) -> str:
    """The file beside which signatures lie."""
    return f"{signatures.removesuffix(layout.SIGNATURE_SUFFIX)}{layout.MANIFEST_SUFFIX}"


def _due(entry: os.DirEntry[str], reason: str, after: float) -> Iterator[Leftover]:
    seen = status(entry)
    if seen is not None:
        yield Leftover(Path(entry.path), reason, seen.st_mtime + after, seen.st_size)
