"""The file of the index: opening it for whom the store belongs to, reading it without touching it, and what is wrong with it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import Any

import diskcache

from precast.artifact_store.format.errors import DamagedRecord, RecordError
from precast.artifact_store.format.msgpack import Data, pack, unpack
from precast.artifact_store.local import usage
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure
from precast.artifact_store.tiers.owner import create, owner, user_name

log = logging.getLogger("precast.store")
FAILURES = (sqlite3.Error, diskcache.Timeout, RecordError, OSError)
"""What the index may fail of, which costs the counts of uses and nothing else."""
WAIT = 5.0
"""Seconds, for another `precast` command that has the index locked."""


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


def open_database(root: Path) -> Any:
    """The diskcache, for writing. It keeps a rollback journal: a reader without the right to write needs no further file then."""
    if reason := _barred(root):
        raise OSError(reason)
    usage.make_index(root)
    path = root / "index" / _DATABASE
    with contextlib.suppress(FileExistsError):
        _keep_open(create(root, str(path), os.O_RDWR, 0o600))
    if not os.access(path, os.W_OK, effective_ids=True):  # SQLite would go on without the right to write
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return diskcache.Cache(
        str(path.parent),
        timeout=WAIT,
        disk=MsgpackDisk,
        disk_min_file_size=1 << 30,  # no file beside it
        eviction_policy="none",
        cull_limit=0,
        sqlite_journal_mode="delete",
    )


def mend(store: Store) -> str:
    """Make the index usable: as root by giving it back to the store's user; else by an empty one. Raises OSError.

    Uses that are not counted yet stay. What cannot be removed, since it is another user's, is renamed: the result names it.
    """
    root, folder, whose = store.root, store.root / "index", owner(store.root)
    if whose is not None and os.geteuid() == 0 and folder.is_dir():
        for path in (folder, *folder.iterdir()):
            os.chown(path, whose, -1, follow_symlinks=False)
    reason = damage(store)
    if reason == _LOCKED:
        raise OSError(reason)  # it may be sound, and is in use
    if not reason:
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

    The row `folded` names files of uses; all others are artifacts'.
    """
    database = root / "index" / _DATABASE
    if not database.exists() or not database.stat().st_size:
        return {}, ""
    try:
        return _rows_of(f"{database.as_uri()}?{_reading(database)}")
    except sqlite3.OperationalError:
        journal = database.with_name(f"{_DATABASE}-journal")
        if not journal.exists():
            raise
        # left by a command that was killed: who opens the database for writing takes back what it had begun; here that is done to a copy
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / database.name
            copy.write_bytes(_content(database))
            shutil.copy(journal, folder)
            return _rows_of(copy.as_uri())


def _rows_of(uri: str) -> tuple[dict[str, Data], str]:
    rows: dict[str, Data] = {}
    bad = 0
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=WAIT)) as connection:
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
    logged = _content(database, 20)[18:] == b"\2\2"
    return "mode=ro&immutable=1" if logged and not Path(f"{database}-wal").exists() else "mode=ro"


_kept: dict[tuple[int, int], int] = {}


def _keep_open(descriptor: int) -> int:
    """A descriptor of a database, which stays open as long as the process. Closing one would drop every lock that the process has on the
    file (POSIX), those of SQLite's connections included, and two transactions at a time damage the index. There is one for each index.
    """
    seen = os.fstat(descriptor)
    return _kept.setdefault((seen.st_dev, seen.st_ino), descriptor)


def _content(database: Path, size: int | None = None) -> bytes:
    """The first bytes of a database, or all. Raises OSError."""
    seen = os.stat(database)
    descriptor = _kept.get((seen.st_dev, seen.st_ino))
    if descriptor is None:
        descriptor = _keep_open(os.open(database, os.O_RDONLY | os.O_CLOEXEC))
    return os.pread(descriptor, seen.st_size if size is None else size, 0)


_DATABASE = "cache.db"
_LOCKED = "index/ is locked: wait for the other `precast` command, or its file system has no locks"
_REPAIR = "`precast verify --repair` begins it anew, without its counts"


def damage(store: Store) -> str:
    """Why the store's index cannot be used, with what to do; "" where it can, or there is none. Looks, and opens nothing for writing."""
    if reason := _barred(store.root):
        return reason
    try:
        return stored(store.root)[1]
    except FAILURES as error:
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
        return _LOCKED
    if isinstance(error, RecordError) or (isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError)):
        return f"index/{_DATABASE} is damaged ({error}); {_REPAIR}"
    cause = error if isinstance(error, OSError) else _cause(root / "index")
    if cause is None:
        return f"index/ cannot be opened ({error}); {_REPAIR}"
    return f"index/ cannot be opened ({cause.strerror or cause}): {cure(cause, root)}"


def _cause(folder: Path) -> OSError | None:
    """Why nothing can be read or written there: SQLite says of most things that it is unable to open a file."""
    try:
        _content(folder / _DATABASE, 1)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(1 << 16))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error
    return None
