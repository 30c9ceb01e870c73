"""The index: what `ls`, `stats` and `prune` need to know of each artifact without reading every manifest. Local and rebuildable.

It is a diskcache under `index/` whose values are msgpack: diskcache's own Disk would unpickle what it finds there. Losing it costs the
use counts and nothing else; where it cannot be opened (read-only store, filesystem without locks, damage) entries are read from the
manifests each time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.format.manifest import Manifest, Versions
from precast.artifact_store.format.msgpack import Data
from precast.artifact_store.local import machine_uses, usage
from precast.artifact_store.maintenance.index_file import FAILURES, MsgpackDisk, damage, mend, open_database, stored, why_unopened
from precast.artifact_store.maintenance.scan import Seen, manifest_files
from precast.artifact_store.store import Store

log = logging.getLogger("precast.store")
_SCHEMA = 2


@dataclass(frozen=True)
class Entry:
    """One artifact as the index knows it. Times in unix seconds, sizes in bytes; `blobs` is digest -> size, `graphs` the graphs' roles.

    `counted`: the last use that was counted; 0 where none was. `last_use` is the later one of it and `created`.
    """

    artifact_id: str
    program_key: str
    program_name: str
    target: str
    versions: Versions
    manifest_size: int
    blobs: dict[str, int]
    guards: int
    created: float
    last_use: float
    hits: int
    counted: float = 0.0
    graphs: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return self.manifest_size + sum(self.blobs.values())

    @property
    def name(self) -> str:
        return layout.manifest_name(self.program_key, self.artifact_id)


class Index:
    """Entries by artifact id, over a diskcache that keeps them or, where there is none, what could be read of one.

    `problem`: why it is not known which artifacts were used, as a sentence; "" where it is. `began`: since when it is, in unix seconds.
    """

    def __init__(self, root: Path, cache: Any = None, problem: str = "") -> None:
        self._root = root
        self._cache = cache
        self.problem = problem
        self.began = 0.0
        self.moved = ""  # where an index lies that could not be removed, and was replaced

    def entries(self, store: Store) -> list[Entry]:
        """All readable artifacts of `store`, ordered by program and id, with the uses recorded here and those told by other machines."""
        found = self._counted_here(store)
        try:
            told = machine_uses.together(self._root)
        except OSError as error:
            self.give_up(why_unopened(self._root, error))
            return found
        return [_with_told(entry, told[entry.artifact_id]) if entry.artifact_id in told else entry for entry in found] if told else found

    def counted_here(self, store: Store) -> dict[str, machine_uses.Uses]:
        """What was used in this store itself."""
        return {entry.artifact_id: machine_uses.Uses(entry.hits, entry.counted) for entry in self._counted_here(store) if entry.hits}

    def _counted_here(self, store: Store) -> list[Entry]:
        if self._cache is not None:
            try:
                return self._kept(store)
            except FAILURES as error:
                self.give_up(why_unopened(self._root, error))
        return self._looked_up(store)

    def forget(self, artifact_ids: Iterable[str]) -> None:
        """Their rows, in one transaction; what stays behind is taken out by the next `entries`."""
        if self._cache is not None:
            try:
                with self._cache.transact():
                    for artifact_id in artifact_ids:
                        self._cache.pop(artifact_id)
            except FAILURES as error:
                log.info("index: forgetting what was removed failed (%s)", error)

    def _kept(self, store: Store) -> list[Entry]:
        """Rows and recorded uses become rows in one transaction: a use is counted once, wherever this process ends, or not yet."""
        if usage.full(self._root):
            usage.begin(self._root)
        usage.set_aside(self._root)
        with self._cache.transact():
            rows = self._rows()
            counted = _folded(rows)
            uses = usage.recorded(self._root, but=counted)
            found = self._found(store, rows, uses)
            for artifact_id in rows.keys() - {entry.artifact_id for entry, _ in found}:
                self._cache.pop(artifact_id)
            for entry, stamp in found if not self.problem else ():
                if stamp:
                    self._cache.set(entry.artifact_id, _to_record(entry, stamp))
            aside = [name for name in (*counted, *uses) if name != usage.JOURNAL and (self._root / "index" / name).exists()]
            if not self.problem and aside != counted:
                self._cache.set(_FOLDED, {"files": aside})
        for name in aside if not self.problem else ():
            (self._root / "index" / name).unlink(missing_ok=True)
        return [entry for entry, _ in found]

    def _looked_up(self, store: Store) -> list[Entry]:
        """The same, and nothing is kept."""
        rows: dict[str, Data] = {}
        uses: dict[str, list[tuple[str, int]]] = {}
        try:
            rows = self._rows()
            uses = usage.recorded(self._root, but=_folded(rows))
        except FAILURES as error:
            self.give_up(why_unopened(self._root, error))
        return [entry for entry, _ in self._found(store, rows, uses)]

    def _rows(self) -> dict[str, Data]:
        rows, bad = stored(self._root)
        if bad:
            self.give_up(bad)
        return rows

    def give_up(self, problem: str) -> None:
        """Uses are not known, for this reason."""
        if not self.problem:
            self.problem = problem
            log.info("index: which artifacts were used is not known: %s", problem)

    def _found(self, store: Store, rows: dict[str, Data], uses: dict[str, list[tuple[str, int]]]) -> list[tuple[Entry, str]]:
        """Each artifact, and the stamp of its manifest where its row has to be written."""
        stamps: dict[str, list[int]] = {}
        for artifact_id, stamp in (use for file in uses.values() for use in file):
            stamps.setdefault(artifact_id, []).append(stamp)
        try:
            self.began = time.time() if usage.full(self._root) else usage.began(self._root)
        except OSError as error:
            self.give_up(why_unopened(self._root, error))
        found: list[tuple[Entry, str]] = []
        for seen in manifest_files(store):
            known = rows.get(seen.artifact_id)
            entry = _known(seen, known)
            changed = entry is None
            if entry is None:
                entry = _read(store, seen, known)
            if entry is not None:
                used = stamps.get(seen.artifact_id)
                found.append((_with_uses(entry, used) if used else entry, seen.stamp if changed or used else ""))
        return found


_FOLDED = "folded"
"""The row of the files of uses that are counted and may not be removed yet."""


def _folded(rows: dict[str, Data]) -> list[str]:
    """The files that row names, which is taken out; names that no file of uses has are left out."""
    row = rows.pop(_FOLDED, None)
    names = row.get("files") if isinstance(row, dict) else ()
    names = names if isinstance(names, tuple) else ()
    return [name for name in names if isinstance(name, str) and name.startswith(f"{usage.JOURNAL}.") and "/" not in name]


def _known(seen: Seen, row: Data) -> Entry | None:
    """The artifact as its row tells it; None where there is none of this very file."""
    if (
        isinstance(row, dict)
        and row.get("schema") == _SCHEMA
        and row.get("stamp") == seen.stamp
        and row.get("program_key") == seen.program_key
    ):
        try:
            return _from_record(seen.artifact_id, row)
        except (KeyError, TypeError):
            log.info("index: the row of %s is not complete; it is made anew", seen.artifact_id[:12])
    return None


def _read(store: Store, seen: Seen, row: Data) -> Entry | None:
    """The artifact as its manifest tells it, with the counts that a row of an earlier file of it had."""
    manifest = store.get(seen.artifact_id, seen.program_key)
    if manifest is None:
        return None
    try:
        entry = _from_manifest(manifest, seen.size, seen.modified / 1e9)
    except RecordError as error:
        log.info("index: %s: %s", seen.name, error)
        return None
    if isinstance(row, dict) and type(row.get("hits")) is int and row["hits"]:
        counted = row.get("counted", row.get("last_use"))
        counted = counted if type(counted) is float else 0.0
        entry = replace(entry, hits=row["hits"], counted=counted, last_use=max(entry.last_use, counted))
    return entry


def _with_uses(entry: Entry, stamps: list[int]) -> Entry:
    counted = max(entry.counted, float(max(stamps)))
    return replace(entry, hits=entry.hits + len(stamps), counted=counted, last_use=max(entry.last_use, counted))


def _with_told(entry: Entry, uses: machine_uses.Uses) -> Entry:
    counted = max(entry.counted, uses.last)
    return replace(entry, hits=entry.hits + uses.hits, counted=counted, last_use=max(entry.last_use, counted))


@contextlib.contextmanager
def open_index(store: Store, rebuild: bool = False) -> Iterator[Index]:
    """The store's index; `rebuild` mends it, where it has to be. Where it cannot be opened or read, its `problem` says why."""
    root, index = store.root, Index(store.root)
    if not (root / layout.FORMAT_FILE).exists():
        yield index
        return
    if store.readonly:
        if reason := damage(store):
            index.give_up(reason)
        yield index
        return
    try:
        if rebuild:
            index.moved = mend(store)
        cache = open_database(root)
    except FAILURES as error:
        index.give_up(why_unopened(root, error))
        yield index
        return
    with cache:
        index._cache = cache
        yield index


def _from_manifest(manifest: Manifest, size: int, mtime: float) -> Entry:
    return Entry(
        artifact_id=manifest.artifact_id,
        program_key=manifest.program_key,
        program_name=manifest.program_name,
        target=manifest.target,
        versions=manifest.versions,
        manifest_size=size,
        blobs=manifest.blobs,
        guards=manifest.guard_count,
        created=mtime,
        last_use=mtime,
        hits=0,
        graphs=tuple(sorted(manifest.graphs, reverse=True)),
    )


def _to_record(entry: Entry, stamp: str) -> dict[str, Data]:
    versions = entry.versions
    return {
        "schema": _SCHEMA,
        "stamp": stamp,
        "program_key": entry.program_key,
        "program_name": entry.program_name,
        "target": entry.target,
        "versions": {"lowering": versions.lowering, "torch": versions.torch, "python": versions.python, "compiler": versions.compiler},
        "manifest_size": entry.manifest_size,
        "blobs": entry.blobs,
        "guards": entry.guards,
        "created": entry.created,
        "last_use": entry.last_use,
        "hits": entry.hits,
        "counted": entry.counted,
        "graphs": entry.graphs,
    }


def _from_record(artifact_id: str, record: dict[str, Data]) -> Entry:
    return Entry(
        artifact_id,
        record["program_key"],
        record["program_name"],
        record["target"],
        Versions(**record["versions"]),
        record["manifest_size"],
        record["blobs"],
        record["guards"],
        record["created"],
        record["last_use"],
        record["hits"],
        record.get("counted", 0.0),
        tuple(record["graphs"]),
    )


__all__ = ["Entry", "Index", "MsgpackDisk", "damage", "open_index", "stored"]
