"""The index: what `ls`, `stats` and `prune` need to know of each artifact without reading every manifest. Local and rebuildable.

It is a diskcache under `index/` whose values are msgpack: diskcache's own Disk would unpickle what it finds there. Losing it costs the
use counts and nothing else; where it cannot be opened (read-only store, filesystem without locks, damage) entries are read from the
manifests each time.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diskcache

from precast.artifact_store import layout, usage
from precast.artifact_store.errors import DamagedRecord, RecordError
from precast.artifact_store.manifest import Manifest, Versions
from precast.artifact_store.serial import Data, pack, unpack
from precast.artifact_store.store import Store

log = logging.getLogger("precast.store")
_SCHEMA = 1


class MsgpackDisk(diskcache.Disk):  # type: ignore[misc]
    """diskcache's file layer with msgpack values and string keys; anything pickled is refused, in both directions."""

    def put(self, key: object) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"index keys are strings, not {type(key).__name__}")
        return key, True

    def get(self, key: object, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise DamagedRecord("index: a pickled key is refused")
        return key

    def store(self, value: Data, read: bool, key: object = diskcache.UNKNOWN) -> Any:
        if read:
            raise TypeError("the index keeps values, not files")
        return super().store(pack(value, "index entry"), False, key=key)

    def fetch(self, mode: int, filename: str | None, value: object, read: bool) -> Data:
        if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
            raise DamagedRecord(f"index: a value of mode {mode} (pickle is 4) is refused")
        data = super().fetch(mode, filename, value, False)
        if type(data) is not bytes:
            raise DamagedRecord("index: a value is not msgpack")
        return unpack(data, "index entry")


@dataclass(frozen=True)
class Entry:
    """One artifact as the index knows it. Times in unix seconds, sizes in bytes; `blobs` is digest -> size."""

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

    @property
    def size(self) -> int:
        return self.manifest_size + sum(self.blobs.values())

    @property
    def name(self) -> str:
        return layout.manifest_name(self.program_key, self.artifact_id)


class Index:
    """Entries by artifact id, over a diskcache or, where there is none, a dict that lives as long as this object."""

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def entries(self, store: Store) -> list[Entry]:
        """All readable artifacts of `store`, ordered by program and id, with recorded uses folded in."""
        used: dict[str, list[int]] = {}
        if not store.readonly:
            for artifact_id, stamp in usage.recorded(store.root, take=self._cache is not None):
                used.setdefault(artifact_id, []).append(stamp)
        found = []
        for program_key in store.programs():
            for name in store.manifest_names(program_key):
                entry = self._entry(store, name)
                if entry is not None:
                    found.append(self._with_uses(entry, used.get(entry.artifact_id, [])))
        return found

    def forget(self, artifact_id: str) -> None:
        self._guarded("pop", artifact_id, None)

    def _entry(self, store: Store, name: str) -> Entry | None:
        path = store.path(name)
        artifact_id = path.name.removesuffix(layout.MANIFEST_SUFFIX)
        try:
            stat = path.stat()
        except OSError:
            self.forget(artifact_id)
            return None
        stamp = f"{stat.st_size}-{stat.st_mtime_ns}"
        known = self._guarded("get", artifact_id)
        if isinstance(known, dict) and known.get("schema") == _SCHEMA and known.get("stamp") == stamp:
            with contextlib.suppress(KeyError, TypeError):
                return _from_record(artifact_id, known)
        manifest = store.get(artifact_id, name.split("/")[1])
        if manifest is None:
            return None
        try:
            entry = _from_manifest(manifest, stat.st_size, stat.st_mtime)
        except RecordError as error:
            log.info("index: %s: %s", name, error)
            return None
        if isinstance(known, dict) and type(known.get("hits")) is int and type(known.get("last_use")) is float:
            entry = replace(entry, hits=known["hits"], last_use=max(entry.last_use, known["last_use"]))
        self._guarded("set", artifact_id, _to_record(entry, stamp))
        return entry

    def _with_uses(self, entry: Entry, stamps: list[int]) -> Entry:
        if not stamps:
            return entry
        entry = replace(entry, hits=entry.hits + len(stamps), last_use=max(entry.last_use, float(max(stamps))))
        known = self._guarded("get", entry.artifact_id)
        self._guarded("set", entry.artifact_id, _to_record(entry, known["stamp"] if isinstance(known, dict) else ""))
        return entry

    def _guarded(self, verb: str, key: str, *value: Data) -> Data:
        """A cache call that answers None where the index is damaged or locked: it only costs a manifest read."""
        if self._cache is None:
            return None
        try:
            return getattr(self._cache, verb)(key, *value)
        except (sqlite3.Error, diskcache.Timeout, RecordError, OSError) as error:
            log.info("index: %s of %s failed (%s)", verb, key[:12], error)
            return None


@contextlib.contextmanager
def open_index(store: Store, rebuild: bool = False) -> Iterator[Index]:
    """The store's index; `rebuild` starts it afresh (use counts are lost). Works without one where it cannot be opened."""
    folder = store.root / "index"
    if store.readonly or not (store.root / layout.FORMAT_FILE).exists():
        yield Index(None)
        return
    if rebuild:
        _start_afresh(folder)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        cache = diskcache.Cache(str(folder), timeout=5, disk=MsgpackDisk, eviction_policy="none", cull_limit=0)
    except (sqlite3.Error, diskcache.Timeout, OSError) as error:
        log.warning("index: cannot be opened (%s); reading the manifests instead (`precast verify --repair` rebuilds it)", error)
        yield Index(None)
        return
    with cache:
        yield Index(cache)


def _start_afresh(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        folder.unlink()
    for path in folder.glob("cache.db*"):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / "values", ignore_errors=True)


def damage(store: Store) -> str:
    """Why the store's index cannot be opened, where it has to be rebuilt for that; "" where it can, or there is none."""
    database = store.root / "index" / "cache.db"
    if database.parent.exists() and not database.parent.is_dir():
        return "a file where a folder is due"
    if not database.exists():
        return ""
    if not database.is_file():
        return "not a file"
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return ""  # locked, or not to be read by this user
    except sqlite3.DatabaseError as error:
        return str(error)
    return ""


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
    }


def _from_record(artifact_id: str, record: dict[str, Data]) -> Entry:
    fields = {name: value for name, value in record.items() if name not in ("schema", "stamp", "versions")}
    return Entry(artifact_id=artifact_id, versions=Versions(**record["versions"]), **fields)
