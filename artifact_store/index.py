"""The index: what `ls`, `stats` and `prune` need to know of each artifact without reading every manifest. Local and rebuildable.

It is a diskcache under `index/` whose values are msgpack: diskcache's own Disk would unpickle what it finds there. Losing it costs the
use counts and nothing else; where it cannot be opened (read-only store, filesystem without locks, damage) entries are read from the
manifests each time.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import diskcache

from precast.artifact_store import layout, usage
from precast.artifact_store.errors import DamagedRecord, RecordError
from precast.artifact_store.manifest import Manifest, Versions
from precast.artifact_store.owner import create, owner, user_name
from precast.artifact_store.serial import Data, pack, unpack
from precast.artifact_store.store import Store, cure

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
            except _FAILURES as error:
                self.give_up(why_unopened(self._root, error))
        return self._looked_up(store)

    def forget(self, artifact_id: str) -> None:
        """Its row; what stays behind is taken out by the next `entries`."""
        if self._cache is not None:
            try:
                self._cache.pop(artifact_id)
            except _FAILURES as error:
                log.info("index: forgetting %s failed (%s)", artifact_id[:12], error)

    def _kept(self, store: Store) -> list[Entry]:
        """Rows and recorded uses become rows in one transaction: a use is counted once, wherever this process ends, or not yet."""
        if usage.full(self._root):
            usage.begin(self._root)
        usage.set_aside(self._root)
        with self._cache.transact():
            rows = self._rows()
            counted = rows.pop(_FOLDED, {}).get("files", ())
            uses = usage.recorded(self._root, but=counted)
            found = self._found(store, rows, uses)
            keep = {entry.artifact_id: _to_record(entry, stamp) for entry, stamp in found}
            for artifact_id in rows.keys() - keep.keys():
                self._cache.pop(artifact_id)
            for artifact_id in keep if not self.problem else ():
                if rows.get(artifact_id) != keep[artifact_id]:
                    self._cache.set(artifact_id, keep[artifact_id])
            aside = [name for name in (*counted, *uses) if name != usage.JOURNAL and (self._root / "index" / name).exists()]
            if not self.problem and aside != list(counted):
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
            uses = usage.recorded(self._root, but=rows.pop(_FOLDED, {}).get("files", ()))
        except _FAILURES as error:
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
_FAILURES = (sqlite3.Error, diskcache.Timeout, RecordError, OSError)


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
            index.moved = _mend(store)
        cache = _database(root)
    except _FAILURES as error:
        index.give_up(why_unopened(root, error))
        yield index
        return
    with cache:
        index._cache = cache
        yield index


def _database(root: Path) -> Any:
    """The diskcache, for writing. It keeps a rollback journal: a reader without the right to write needs no further file then."""
    if reason := _barred(root):
        raise OSError(reason)
    usage.make_index(root)
    path = root / "index" / _DATABASE
    with contextlib.suppress(FileExistsError):
        os.close(create(root, str(path), os.O_WRONLY, 0o600))
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))  # SQLite would go on without the right to write
    return diskcache.Cache(
        str(path.parent),
        timeout=5,
        disk=MsgpackDisk,
        disk_min_file_size=1 << 30,  # no file beside it
        eviction_policy="none",
        cull_limit=0,
        sqlite_journal_mode="delete",
    )


def _mend(store: Store) -> str:
    """Make the index usable: as root by giving it back to the store's user; else by an empty one. Raises OSError.

    Uses that are not counted yet stay. What cannot be removed, since it is another user's, is renamed: the result names it.
    """
    root, folder, whose = store.root, store.root / "index", owner(store.root)
    if whose is not None and os.geteuid() == 0 and folder.is_dir():
        for path in (folder, *folder.iterdir()):
            os.chown(path, whose, -1, follow_symlinks=False)
    if not damage(store):
        return ""
    moved = ""
    if folder.exists() and not folder.is_dir():
        folder.unlink()
    if folder.exists():
        with contextlib.suppress(OSError):
            for path in folder.glob(f"{_DATABASE}*"):
                path.unlink()
        if damage(store):
            moved = f"index.{secrets.token_hex(4)}"
            os.rename(folder, root / moved)
        else:
            usage.begin(root)
    usage.make_index(root)
    return moved


def stored(root: Path) -> tuple[dict[str, Data], str]:
    """The rows of the store's database, read without touching it, and what is wrong with one that cannot be used. Raises sqlite3.Error.

    `_FOLDED` names files of uses; all other rows are artifacts'.
    """
    database = root / "index" / _DATABASE
    rows: dict[str, Data] = {}
    bad = 0
    if not database.exists() or not database.stat().st_size:
        return rows, ""
    with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?{_reading(database)}", uri=True, timeout=5)) as connection:
        if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'Cache'").fetchone()[0]:
            return rows, ""
        for key, value, mode, filename in connection.execute("SELECT key, value, mode, filename FROM Cache"):
            try:
                if type(key) is not str or type(value) is not bytes or mode != diskcache.core.MODE_RAW or filename is not None:
                    raise DamagedRecord("index: what is not msgpack is refused")
                rows[key] = unpack(value, "index entry")
            except DamagedRecord as error:
                log.info("%s", error)
                bad += 1
    return rows, f"index/{_DATABASE} has {bad} damaged {'row' if bad == 1 else 'rows'}; {_REPAIR}" if bad else ""


def _reading(database: Path) -> str:
    """How to open it without making files: one with a write-ahead log (older indexes) as it lies there, where nobody has it open."""
    with open(database, "rb") as file:
        logged = file.read(20)[18:] == b"\2\2"
    return "mode=ro&immutable=1" if logged and not Path(f"{database}-wal").exists() else "mode=ro"


_DATABASE = "cache.db"
_REPAIR = "`precast verify --repair` begins it anew, without its counts"


def damage(store: Store) -> str:
    """Why the store's index cannot be used, with what to do; "" where it can, or there is none. Looks, and opens nothing for writing."""
    if reason := _barred(store.root):
        return reason
    try:
        return stored(store.root)[1]
    except _FAILURES as error:
        return why_unopened(store.root, error)


def _barred(root: Path) -> str:
    """What is wrong with the files of the index before they are opened: they are no files, or another user's, or not to be seen."""
    whose = owner(root)
    for name in ("index", f"index/{_DATABASE}", f"index/{usage.JOURNAL}"):
        try:
            seen = os.stat(root / name)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            break
        except OSError as error:
            return why_unopened(root, error)
        if whose is not None and seen.st_uid != whose:
            mine, theirs = user_name(whose), user_name(seen.st_uid)
            back = f"`chown -R {mine.removeprefix('uid ')} {root / 'index'}` as root gives it back with its counts"
            place = "index/" if name == "index" else name
            return f"{place} belongs to {theirs}, and the store to {mine}, who cannot count uses in it: {back}; {_REPAIR}"
        if name == "index" and not stat.S_ISDIR(seen.st_mode):
            return f"index/ is a file, where a folder is due; {_REPAIR}"
        if name.endswith(_DATABASE) and not stat.S_ISREG(seen.st_mode):
            return f"index/{_DATABASE} is not a file; {_REPAIR}"
    return ""


def why_unopened(root: Path, error: Exception) -> str:
    """What an attempt to open or keep the index failed of, as a sentence with what to do."""
    if isinstance(error, OSError) and error.errno is None:
        return str(error)  # said already
    if isinstance(error, diskcache.Timeout) or "locked" in str(error):
        return "index/ is locked: wait for the other `precast` command, or its file system has no locks"
    if isinstance(error, RecordError) or (isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)):
        return f"index/{_DATABASE} is damaged ({error}); {_REPAIR}"
    cause = error if isinstance(error, OSError) else _cause(root / "index")
    if cause is None:
        return f"index/ cannot be opened ({error}); {_REPAIR}"
    return f"index/ cannot be opened ({cause.strerror or cause}): {cure(cause, root)}"


def _cause(folder: Path) -> OSError | None:
    """Why nothing can be read or written there: SQLite says of most things that it is unable to open a file."""
    try:
        os.close(os.open(folder / _DATABASE, os.O_RDONLY | os.O_CLOEXEC))
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 16))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error
    return None


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
