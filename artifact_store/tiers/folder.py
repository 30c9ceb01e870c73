"""Where bytes live: two small verbs, `get` and `put`, with `names` and `remove` for housekeeping. The store wraps these.

Names are relative, as in `layout`, so that a remote tier can offer the same verbs. A tier raises OSError for what goes wrong; `get` of
what is not there is None: absent and broken are different answers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path

from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.tiers.owner import give

TEMPORARY_PREFIX = ".tmp-"
_NOT_HERE = (errno.ENOENT, errno.ENOTDIR)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """The whole file. Should somebody have put a pipe into a store, it is empty instead of waiting for its writer. Raises OSError."""
    with open(path, "rb", buffering=0, opener=_without_waiting) as file:
        return file.read() or b""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class Folder:
    """A local folder, private to its user. A name appears whole or not at all: write aside, fsync, rename, fsync the directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        return self.root / name

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

    def probe(self, folder: str) -> None:
        """Raises OSError where a file cannot be put into `folder`, which is made where it is missing."""
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

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.path(name).unlink()

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
