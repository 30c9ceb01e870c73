"""A folder that several machines mount (NFS, SMB, a cluster's filesystem): no locks of the system, no database, nothing half visible.

Files are written aside in `.writing/` and renamed or linked into place. Every step from the root down is opened without following links.
`replace` is a claim, a file linked into `.writing/.claims/` for the moment between looking and renaming: one that a dead machine left
behind counts until it is CLAIM_SECONDS old by the server's clock.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, Listed, TimeOuts, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.endpoints.url import EndpointURL, checked, checked_prefix

T = TypeVar("T")
OPTIONS = ("anyone",)
WRITING = ".writing"
CLAIMS = ".claims"
STALE_TRIES = 3
"""How often a verb is tried while the server says that a file which it named is gone (ESTALE)."""
CLAIM_SECONDS = 30.0
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)


class SharedFolderEndpoint:
    """The folder of `shared:///mnt/precast`. It has to be there: what is not mounted is not made."""

    kind = "shared"

    def __init__(self, url: EndpointURL, timeouts: TimeOuts) -> None:
        url.only(*OPTIONS)
        if url.host or not url.path.startswith("/"):
            raise ValueError(f"{url.text}: write shared:///PATH with three slashes; the path is absolute")
        self.url = url.text
        self._root = url.path
        self._anyone = url.flag("anyone")
        self._timeouts = timeouts

    def get(self, name: str, limit: int) -> bytes | None:
        """As the protocol says; see there for all of these."""
        return self._tried(name, lambda: self._get(name, limit))

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        found = self.get(name, limit)
        return None if found is None else Versioned(found, hashlib.sha256(found).hexdigest())

    def put(self, name: str, data: bytes) -> None:
        def once() -> None:
            with self._folder_of(name, make=True) as (folder, last), self._written(data) as (writing, aside):
                os.rename(aside, last, src_dir_fd=writing, dst_dir_fd=folder)
                os.fsync(folder)

        self._tried(name, once)

    def put_new(self, name: str, data: bytes) -> bool:
        def once() -> bool:
            with self._folder_of(name, make=True) as (folder, last), self._written(data) as (writing, aside):
                made = _link(writing, aside, folder, last)
                os.fsync(folder)
                return made

        return self._tried(name, once)

    def replace(self, name: str, data: bytes, version: str) -> bool:
        return self._tried(name, lambda: self._replace(name, data, version))

    def has(self, name: str) -> bool:
        def once() -> bool:
            try:
                with self._folder_of(name) as (folder, last):
                    self._regular(name, os.stat(last, dir_fd=folder, follow_symlinks=False))
            except FileNotFoundError:
                return False
            return True

        return self._tried(name, once)

    def remove(self, name: str) -> None:
        def once() -> None:
            with suppress(FileNotFoundError), self._folder_of(name) as (folder, last):
                os.unlink(last, dir_fd=folder)

        self._tried(name, once)

    def names(self, prefix: str) -> Iterator[Listed]:
        start = checked_prefix(prefix).rpartition("/")[0]
        waiting = [start]
        while waiting:
            here = waiting.pop()
            found, folders = self._tried(here or "/", lambda here=here: self._entries(here))  # type: ignore[misc]
            yield from (each for each in found if each.name.startswith(prefix))
            waiting += [each for each in folders if each.startswith(prefix) or prefix.startswith(f"{each}/")]

    def close(self) -> None:
        """Nothing is kept open."""

    def _get(self, name: str, limit: int) -> bytes | None:
        try:
            with self._folder_of(name) as (folder, last):
                file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        try:
            about = self._regular(name, os.fstat(file))
            if about.st_size > limit:
                raise Garbled(f"{self.url}: {name} has {about.st_size} bytes, and {limit} were allowed")
            deadline = time.monotonic() + self._timeouts.whole
            parts, count = [], 0
            while piece := os.read(file, 1 << 20):
                parts.append(piece)
                count += len(piece)
                if count > limit:
                    raise Garbled(f"{self.url}: {name} grows beyond the {limit} bytes that were allowed")
                if time.monotonic() > deadline:
                    raise Unreachable(f"{self.url}: {name} was not read within {self._timeouts.whole:g} s")
        finally:
            os.close(file)
        if count != about.st_size:
            raise Unreachable(f"{self.url}: {name} ended after {count} of {about.st_size} bytes")
        return b"".join(parts)

    def _replace(self, name: str, data: bytes, version: str) -> bool:
        patience = time.monotonic() + self._timeouts.stall
        with self._folder_of(name, make=True) as (folder, last), self._written(data) as (writing, aside):
            with self._step(WRITING, CLAIMS, make=True) as claims:
                claim = hashlib.sha256(name.encode()).hexdigest()
                while not _link(writing, aside, claims, claim):  # the new content itself is the claim: a file that is there whole
                    self._break_stale(claims, claim, writing, aside)
                    if time.monotonic() > patience:
                        raise Unreachable(f"{self.url}: {name} is being replaced by others all the time")
                    time.sleep(random.uniform(0.001, 0.02))
                mine = os.stat(aside, dir_fd=writing).st_ino
                try:
                    found = self._get(name, 1 << 40)
                    if found is None or hashlib.sha256(found).hexdigest() != version or _inode(claims, claim) != mine:
                        return False
                    os.rename(aside, last, src_dir_fd=writing, dst_dir_fd=folder)
                    os.fsync(folder)
                    return True
                finally:
                    if _inode(claims, claim) == mine:
                        os.unlink(claim, dir_fd=claims)

    def _break_stale(self, claims: int, claim: str, writing: int, aside: str) -> None:
        """Take a claim away that is older than CLAIM_SECONDS, by the clock that dated it and the file just written."""
        with suppress(FileNotFoundError):
            about = os.stat(claim, dir_fd=claims)
            os.utime(aside, dir_fd=writing)
            if os.stat(aside, dir_fd=writing).st_mtime - about.st_mtime > CLAIM_SECONDS:
                gone = secrets.token_hex(12)
                os.rename(claim, gone, src_dir_fd=claims, dst_dir_fd=writing)
                if os.stat(gone, dir_fd=writing).st_ino != about.st_ino:
                    _link(writing, gone, claims, claim)  # another's, taken in this moment: given back
                os.unlink(gone, dir_fd=writing)

    def _entries(self, here: str) -> tuple[list[Listed], list[str]]:
        found, folders = [], []
        with suppress(FileNotFoundError), self._step(*here.split("/") if here else ()) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                name = f"{here}/{entry.name}" if here else entry.name
                with suppress(FileNotFoundError):  # removed meanwhile
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(about.st_mode):
                        folders.append(name)
                    elif stat.S_ISREG(about.st_mode):
                        found.append(Listed(name, about.st_size, about.st_mtime))
        return found, folders

    @contextmanager
    def _step(self, *segments: str, make: bool = False) -> Iterator[int]:
        """The folder below the root, opened step by step; no step is a link."""
        here = self._open_root()
        try:
            for segment in segments:
                try:
                    below = os.open(segment, _FOLDER, dir_fd=here)
                except FileNotFoundError:
                    if not make:
                        raise
                    with suppress(FileExistsError):
                        os.mkdir(segment, 0o777, dir_fd=here)
                    below = os.open(segment, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
            yield here
        finally:
            os.close(here)

    def _open_root(self) -> int:
        try:
            root = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Unreachable(f"{self.url} is no folder here: is it mounted?") from error
        mode = os.fstat(root).st_mode
        if mode & stat.S_IWOTH and not self._anyone:
            os.close(root)
            raise Denied(
                f"anyone may write to {self.url}: `chmod o-w` it, or write ?anyone=1 behind its URL if signatures are what you rely on"
            )
        return root

    @contextmanager
    def _folder_of(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        *folders, last = checked(name).split("/")
        with self._step(*folders, make=make) as folder:
            yield folder, last

    @contextmanager
    def _written(self, data: bytes) -> Iterator[tuple[int, str]]:
        """`data` in a file aside, safe on the disk, which is removed afterwards where it was not moved."""
        aside = secrets.token_hex(16)
        with self._step(WRITING, make=True) as writing:
            file = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=writing)
            try:
                try:
                    view = memoryview(data)
                    while view:
                        view = view[os.write(file, view) :]
                    os.fsync(file)
                finally:
                    os.close(file)
                yield writing, aside
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(aside, dir_fd=writing)

    def _regular(self, name: str, about: os.stat_result) -> os.stat_result:
        if not stat.S_ISREG(about.st_mode):
            raise Garbled(f"{self.url}: {name} is no regular file")
        return about

    def _tried(self, name: str, verb: Callable[[], T]) -> T:
        """What the verb returns; a stale handle is tried again, and what the filesystem refuses becomes an EndpointError."""
        for attempt in range(1, STALE_TRIES + 1):
            try:
                return verb()
            except EndpointError:
                raise
            except OSError as error:
                if error.errno == errno.ESTALE and attempt < STALE_TRIES:
                    continue
                raise self._meaning(name, error) from error
        raise AssertionError("not reached")

    def _meaning(self, name: str, error: OSError) -> EndpointError:
        where = f"{self.url}: {name}: {error.strerror}"
        if error.errno in _DENIED:
            return Denied(where)
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ENXIO, errno.EEXIST):
            return Garbled(f"{where}: links and other things than folders and files are not followed")
        return Unreachable(where)


def _link(from_folder: int, source: str, to_folder: int, target: str) -> bool:
    """Give a file a second name where nothing has that; whether it got it. A server's answer that was lost shows in the count of names."""
    before = os.stat(source, dir_fd=from_folder).st_nlink
    try:
        os.link(source, target, src_dir_fd=from_folder, dst_dir_fd=to_folder, follow_symlinks=False)
    except FileExistsError:
        return os.stat(source, dir_fd=from_folder).st_nlink > before
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV):
            raise Unsupported(f"this filesystem has no hard links ({error.strerror}), without which nobody can be first") from error
        raise
    return True


def _inode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder).st_ino
    except FileNotFoundError:
        return None
