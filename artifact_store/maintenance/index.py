"""The index: what `ls`, `stats` and `prune` need to know of each artifact without reading every manifest. Local and rebuildable.

It is a diskcache under `index/` whose values are msgpack: diskcache's own Disk would unpickle what it finds there. Losing it costs the
use counts and nothing else; where it cannot be opened (read-only store, filesystem without locks, damage) entries are read from the
manifests each time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import RecordError
from precast.artifact_store.format.manifest import Manifest, Versions
from precast.artifact_store.format.msgpack import Data
from precast.artifact_store.local import usage
from precast.artifact_store.maintenance.index_file import FAILURES, MsgpackDisk, damage, mend, open_database, stored, why_unopened
from precast.artifact_store.store import Store

log = logging.getLogger("precast.store")
_SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One artifact as the index knows it. Times in unix seconds, sizes in bytes; `blobs` is digest -> size.

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
        """All readable artifacts of `store`, ordered by program and id, with recorded uses folded in."""
        if self._cache is not None:
            try:
                return self._kept(store)
            except FAILURES as error:
                self.give_up(why_unopened(self._root, error))
        return self._looked_up(store)

    def forget(self, artifact_id: str) -> None:
        """Its row; what stays behind is taken out by the next `entries`."""
        if self._cache is not None:
            try:
                self._cache.pop(artifact_id)
            except FAILURES as error:
                log.info("index: forgetting %s failed (%s)", artifact_id[:12], error)

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
            keep = {entry.artifact_id: _to_record(entry, stamp) for entry, stamp in found}
            for artifact_id in rows.keys() - keep.keys():
                self._cache.pop(artifact_id)
            for artifact_id in keep if not self.problem else ():
                if rows.get(artifact_id) != keep[artifact_id]:
                    self._cache.set(artifact_id, keep[artifact_id])
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
        """Each artifact, and the stamp of its manifest."""
        stamps: dict[str, list[int]] = {}
        for artifact_id, stamp in (use for file in uses.values() for use in file):
            stamps.setdefault(artifact_id, []).append(stamp)
        try:
            self.began = time.time() if usage.full(self._root) else usage.began(self._root)
        except OSError as error:
            self.give_up(why_unopened(self._root, error))
        names = (name for program_key in store.programs() for name in store.manifest_names(program_key))
        found = (_entry(store, name, rows) for name in names)
        return [(_with_uses(entry[0], stamps.get(entry[0].artifact_id, [])), entry[1]) for entry in found if entry is not None]


_FOLDED = "folded"
"""The row of the files of uses that are counted and may not be removed yet."""


def _folded(rows: dict[str, Data]) -> list[str]:
    """The files that row names, which is taken out; names that no file of uses has are left out."""
    row = rows.pop(_FOLDED, None)
    names = row.get("files") if isinstance(row, dict) else ()
    names = names if isinstance(names, tuple) else ()
    return [name for name in names if isinstance(name, str) and name.startswith(f"{usage.JOURNAL}.") and "/" not in name]


def _entry(store: Store, name: str, rows: dict[str, Data]) -> tuple[Entry, str] | None:
    path = store.path(name)
    artifact_id = path.name.removesuffix(layout.MANIFEST_SUFFIX)
    try:
        seen = path.stat()
    except OSError:
        return None
    stamp = f"{seen.st_size}-{seen.st_mtime_ns}"
    known = rows.get(artifact_id)
    if isinstance(known, dict) and known.get("schema") == _SCHEMA and known.get("stamp") == stamp:
        with contextlib.suppress(KeyError, TypeError):
            return _from_record(artifact_id, known), stamp
    manifest = store.get(artifact_id, name.split("/")[1])
    if manifest is None:
        return None
    try:
        entry = _from_manifest(manifest, seen.st_size, seen.st_mtime)
    except RecordError as error:
        log.info("index: %s: %s", name, error)
        return None
    if isinstance(known, dict) and type(known.get("hits")) is int and known["hits"]:
        counted = known.get("counted", known.get("last_use"))
        counted = counted if type(counted) is float else 0.0
        entry = replace(entry, hits=known["hits"], counted=counted, last_use=max(entry.last_use, counted))
    return entry, stamp


def _with_uses(entry: Entry, stamps: list[int]) -> Entry:
    if not stamps:
        return entry
    counted = max(entry.counted, float(max(stamps)))
    return replace(entry, hits=entry.hits + len(stamps), counted=counted, last_use=max(entry.last_use, counted))


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
        guards=len(manifest.guard_rows),
        created=mtime,
        last_use=mtime,
        hits=0,
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
    }


def _from_record(artifact_id: str, record: dict[str, Data]) -> Entry:
    fields = {name: value for name, value in record.items() if name not in ("schema", "stamp", "versions")}
    return Entry(artifact_id=artifact_id, versions=Versions(**record["versions"]), **fields)


__all__ = ["Entry", "Index", "MsgpackDisk", "damage", "open_index", "stored"]
