"""The tier that is a local folder: each name is a file, written aside, synced and renamed into place."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.format.origin import FOLDER
from precast.artifact_store.tiers.disk_errors import advice, elsewhere
from precast.artifact_store.tiers.owner import give
from precast.artifact_store.tiers.tier import Stamp

TEMPORARY_PREFIX = ".tmp-"
_NOT_HERE = (errno.ENOENT, errno.ENOTDIR)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The whole file. Should somebody have put a pipe or a device into a store, it is empty, instead of waited for or endless.

    Raises OSError.
    """
    with open(path, "rb", buffering=0, opener=_without_waiting) as file:
        return (file.read() or b"") if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class Folder:
    """A local folder, private to its user. A name appears whole or not at all: write aside, fsync, rename, fsync the directory."""

    kind = FOLDER

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def place(self) -> str:
        return str(self.root)

    def path(self, name: str) -> Path:
        return self.root / name

    def file(self, name: str) -> Path:
        return self.path(name)

    def get(self, name: str) -> bytes | None:
        try:
            return read_file(f"{self.root}/{name}")
        except OSError as error:
            if error.errno in _NOT_HERE:
                return None
            raise

    def put(self, name: str, data: bytes, mode: int = 0o600) -> None:
        target = self.path(name)
        self.make_folder(target.parent)
        aside = target.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}"
        try:
            _write_synced(aside, data, mode, self.root)
            os.replace(aside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                aside.unlink()
            raise
        sync_folder(target.parent)

    def check_readable(self, name: str) -> None:
        try:
            os.close(os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return

    def check_writable(self, folder: str) -> None:
        self.make_folder(self.path(folder))
        aside = self.path(f"{folder}/{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
        try:
            aside.write_bytes(b"probe")
        finally:
            aside.unlink(missing_ok=True)

    def put_new(self, name: str, data: bytes) -> None:
        """Keep content-addressed `data`, read-only. What is there already and sound is kept (its time renewed, so that prune spares it)."""
        path = self.path(name)
        with contextlib.suppress(OSError):
            if path.stat().st_size == len(data) and digest(read_file(path)) == path.name:
                os.utime(path)
                return
        self.put(name, data, mode=0o400)

    def names(self, prefix: str) -> list[str]:
        """Names of all files under folder `prefix`, sorted; temporaries left out."""
        found: list[str] = []
        for folder, _, files in os.walk(self.root / prefix):
            relative = Path(folder).relative_to(self.root).as_posix()
            found += [f"{relative}/{file}" for file in files if not file.startswith(TEMPORARY_PREFIX)]
        return sorted(found)

    def listed(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except FileNotFoundError:
            return []

    def stamp(self, name: str) -> Stamp | None:
        try:
            seen = os.stat(f"{self.root}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stamp(seen.st_ino, seen.st_size, seen.st_mtime_ns)

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path(name).unlink()

    def set_aside(self, name: str) -> None:
        """Move a damaged entry to quarantine/, dated now: its time there is when it came there."""
        self.make_folder(self.root / layout.QUARANTINE)
        place = self.root / layout.QUARANTINE / f"{name.replace('/', '~')}.{secrets.token_hex(4)}"
        os.replace(self.path(name), place)
        with contextlib.suppress(OSError):
            os.utime(place)

    def problem(self) -> str:
        try:
            text = read_file(self.root / layout.FORMAT_FILE).decode("ascii").strip()
        except FileNotFoundError:
            return ""
        except NotADirectoryError:
            return f"store {self.root}: a file is in the way; {elsewhere()}"
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            return f"store {self.root}: its format file cannot be read ({reason}); {advice(error)}"
        return _why_not_ours(self.root, text)

    def prepare(self) -> None:
        """Make the store's own files. The format file comes first: a folder without it is not yet a store."""
        if (self.root / layout.FORMAT_FILE).exists():
            return
        self.make_folder(self.root)
        self.put(layout.FORMAT_FILE, f"{layout.LAYOUT_VERSION}\n".encode())
        self.put(layout.TAG_FILE, layout.CACHEDIR_TAG)
        for folder in layout.LOCAL_FOLDERS:
            self.make_folder(self.root / folder)

    def make_folder(self, folder: Path) -> None:
        """Make `folder`, under the root, and what is missing above it: private, and each entry synced in its parent."""
        if folder.is_dir():
            return
        if folder == self.root:
            folder.parent.mkdir(parents=True, exist_ok=True)
        else:
            self.make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder != self.root:
            give(self.root, folder)
        sync_folder(folder.parent)


def _why_not_ours(root: Path, text: str) -> str:
    """What is wrong with the text of a format file, as a sentence."""
    if text == str(layout.LAYOUT_VERSION):
        return ""
    if text.isdigit():
        return f"store {root}: layout version {text}, and this precast uses {layout.LAYOUT_VERSION}; upgrade precast, or {elsewhere()}"
    return f"store {root}: its format file says {text[:40]!r}, which is not a precast store; {elsewhere()}"


def _write_synced(path: Path, data: bytes, mode: int, root: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    give(root, descriptor)
    with open(descriptor, "wb", buffering=0) as file:
        view = memoryview(data)
        while view:  # an unbuffered write may be short (a nearly full disk writes what fits first)
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` last. Filesystems that cannot sync a directory (some network ones) are left to their own promises."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
