"""Leases: one compile across processes, of an artifact or (before it is known which that will be) for one kind of call.

A lease is a file `leases/<name>`, made exclusively, kept alive by a heartbeat (its modification time) and deleted at the end. Who finds
it taken waits: until it is gone, or until its holder is dead. Dead means that the holder's process no longer exists on this machine, or
that the heartbeat stood still for `EXPIRY` seconds *by the waiter's own clock*, so that clocks of other machines do not matter.

A lease saves work and guards nothing: where it fails (read-only or odd filesystem, time-out, two takers at once) both compile and the
store stays right, because artifacts appear atomically. No file locks are used, since network filesystems may lack them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX, Folder, read_file

log = logging.getLogger("precast.store")

HEARTBEAT = 2.0
EXPIRY = 20.0
"""Seconds without a heartbeat after which a holder counts as dead. Ten beats: a swapping machine misses some."""
_NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
"""What a filesystem without hard links answers."""


class Lease:
    """A lease that `acquire` or `Watch.look` took. `held` is False where the caller goes on without one (the module's text says when);
    `waited` is in seconds.
    """

    def __init__(self, path: Path, held: bool, waited: float, token: str = "") -> None:
        self.path = path
        self.held = held
        self.waited = waited
        self._token = token
        self._owner = os.getpid()
        self._stop = threading.Event()
        self._kept = False

    def keep(self, expiry: float = EXPIRY) -> None:
        """Show from here on that its holder lives, until `release`; where no thread can be started for that, let others have it."""
        if not self.held or self._kept:
            return
        self._kept = True
        every = min(HEARTBEAT, expiry / 4)
        try:
            threading.Thread(target=_beat, args=(self.path, self._token, self._stop, every), name="precast-lease", daemon=True).start()
        except RuntimeError as error:
            log.info("lease %s: %s; compiling without it", self.path.name, error)
            self.release()

    def release(self) -> None:
        """Let others have it. A forked child releases nothing: it is its parent's."""
        self._stop.set()
        if self.held and os.getpid() == self._owner and _holder(self.path).get("token") == self._token:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.held = False


class Watch:
    """Attempts to take one lease, made by one waiter: what it has seen of those who held it meanwhile.

    `holder`: the token of the last one seen, empty where it was free; `released`: how often one that was seen let it go by itself;
    `who`: that holder in words.
    """

    def __init__(self, path: Path, expiry: float = EXPIRY) -> None:
        self.path = path
        self.holder = ""
        self.who = ""
        self.released = 0
        self.expiry = expiry
        self._token = secrets.token_hex(8)
        self._begin = self._unchanged_since = time.monotonic()
        self._seen: tuple[int, str] | None = None
        self._broken = ""

    @property
    def waited(self) -> float:
        """Seconds since the first attempt."""
        return time.monotonic() - self._begin

    def look(self) -> Lease | None:
        """The lease, taken if it is free or its holder is dead; not held where leases cannot be kept. None: somebody holds it."""
        try:
            while not _create(self.path, self._token, self._broken):
                if self._is_held():
                    return None
        except OSError as error:
            log.info("lease %s: %s; compiling without it", self.path.name, error.strerror or error)
            return Lease(self.path, False, self.waited)
        if self.holder not in ("", self._broken):
            self.released += 1
        return Lease(self.path, True, self.waited, self._token)

    def leave(self) -> None:
        """The waiter goes on without the lease; `look` is not called any more."""

    def _is_held(self) -> bool:
        """Whether somebody alive holds it. A dead holder's is taken away. Raises OSError."""
        try:
            record = _holder(self.path)
            token = str(record.get("token"))
            now = (self.path.lstat().st_mtime_ns, token)
        except FileNotFoundError:
            return False  # released between the two calls
        if now != self._seen:
            self._seen, self._unchanged_since = now, time.monotonic()
        if time.monotonic() - self._unchanged_since > self.expiry or is_dead(record):
            _break(self.path, token)
            self.holder = self._broken = token
            return False
        if record and token != self.holder:
            self.released += self.holder not in ("", record.get("after"))
            self.holder, self.who = token, f"process {record.get('pid')} on {record.get('host', 'another machine')}"
        return True


@contextlib.contextmanager
def acquire(folder: Path, name: str, timeout: float = 600.0, expiry: float = EXPIRY) -> Iterator[Lease]:
    """Hold the lease `name`, waiting at most `timeout` seconds for another holder; then go on without it. Never raises for the disk."""
    with hold(Watch(folder / name, expiry), timeout) as lease:
        yield lease


@contextlib.contextmanager
def hold(watch: Watch, timeout: float) -> Iterator[Lease]:
    """The same with a watch that was made already."""
    lease = _take_or_wait(watch, timeout)
    lease.keep(watch.expiry)
    try:
        yield lease
    finally:
        lease.release()


def _take_or_wait(watch: Watch, timeout: float) -> Lease:
    rests = pauses()
    while (lease := watch.look()) is None:
        if watch.waited > timeout:
            log.warning("lease %s: still held after %.0f s; compiling without it", watch.path.name, watch.waited)
            watch.leave()
            return Lease(watch.path, False, watch.waited)
        time.sleep(next(rests))
    return lease


def pauses() -> Iterator[float]:
    """Seconds to sleep between one look and the next, for ever."""
    pause = 0.02
    while True:
        yield pause
        pause = min(pause * 1.5, 0.5)


def _create(path: Path, token: str, after: str) -> bool:
    """Make the lease file, or False when somebody holds it. `after`: the token of a dead holder whose work is taken over."""
    holder = pack({"token": token, **identity(), "after": after})
    try:
        Folder(path.parent.parent).make_folder(path.parent)
    except FileExistsError as error:  # a file or a broken link: nobody holds anything there
        raise NotADirectoryError(errno.ENOTDIR, f"something that is no folder is in the way at {error.filename}") from error
    if os.path.lexists(path):
        return False
    aside = path.with_name(f"{TEMPORARY_PREFIX}{os.getpid()}-{secrets.token_hex(6)}")
    try:
        _write_new(aside, holder)
        os.link(aside, path)  # whole or not at all: a lease that names no holder would be waited for until it expires
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create_in_place(path, holder)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
    return True


def _create_in_place(path: Path, holder: bytes) -> bool:
    """The same where the filesystem has no hard links: a process that is killed between the two steps leaves a lease that expires."""
    try:
        _write_new(path, holder)
    except FileExistsError:
        return False
    except OSError:  # a full disk
        path.unlink(missing_ok=True)
        raise
    return True


def _write_new(path: Path, data: bytes) -> None:
    """Raises FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _holder(path: Path) -> dict[str, object]:
    """Who holds it, as far as the file says; empty when it is gone or being written."""
    try:
        record = unpack(read_file(path), path.name)
    except (OSError, DamagedRecord):
        return {}
    return record if isinstance(record, dict) else {}


def identity() -> dict[str, str | int]:
    """This process, as a lease names its holder."""
    return {"pid": os.getpid(), "place": _place(), "started": _started(os.getpid()), "host": socket.gethostname()}


def is_dead(holder: Mapping[str, object]) -> bool:
    """Whether the holder is a process of this machine that does not exist any more."""
    pid, place = holder.get("pid"), holder.get("place")
    if not isinstance(pid, int) or not 0 < pid < 1 << 31 or place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _started(pid) != holder.get("started")


def _break(path: Path, token: str) -> None:
    """Take a dead holder's lease away. Renamed first and looked at again: if another taker was quicker, the file is a live one.
    Raises OSError where nobody but its owner may take it away.
    """
    aside = path.with_name(f"{path.name}.dead-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):  # somebody else was quicker
        os.rename(path, aside)
    with contextlib.suppress(OSError):
        if str(_holder(aside).get("token")) != token:
            with contextlib.suppress(OSError):
                os.link(aside, path)
        else:
            log.info("lease %s: its holder is gone; taking over", path.name)
        aside.unlink()


def _beat(path: Path, token: str, stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        try:
            if _holder(path).get("token") != token:
                return  # it expired meanwhile, and is another's
            os.utime(path)
        except OSError:
            return  # gone or unwritable: the others take over, and nothing here depends on holding it


def _place() -> str:
    """Where a process id means something: this boot of this kernel and this pid namespace, or the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """A mark that tells a process from a later one with the same id; empty where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
