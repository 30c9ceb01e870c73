"""Leases: one compile per artifact across processes.

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
from collections.abc import Iterator
from pathlib import Path

from precast.artifact_store.errors import DamagedRecord
from precast.artifact_store.serial import pack, unpack
from precast.artifact_store.tiers import Folder, read_file

log = logging.getLogger("precast.store")

HEARTBEAT = 2.0
EXPIRY = 20.0
"""Seconds without a heartbeat after which a holder counts as dead. Ten beats: a swapping machine misses some."""


class Lease:
    """What `acquire` gives: `held` is False where it went on without (see the module's text); `waited` is in seconds."""

    def __init__(self, path: Path, held: bool, waited: float) -> None:
        self.path = path
        self.held = held
        self.waited = waited


@contextlib.contextmanager
def acquire(folder: Path, name: str, timeout: float = 600.0, expiry: float = EXPIRY) -> Iterator[Lease]:
    """Hold the lease `name`, waiting at most `timeout` seconds for another holder; then go on without it. Never raises for the disk."""
    path = folder / name
    token = secrets.token_hex(8)
    lease = _take_or_wait(path, token, timeout, expiry)
    if not lease.held:
        yield lease
        return
    stop = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, stop, min(HEARTBEAT, expiry / 4)), name="precast-lease", daemon=True)
    beat.start()
    owner = os.getpid()
    try:
        yield lease
    finally:
        stop.set()
        if os.getpid() == owner and _holder(path).get("token") == token:
            with contextlib.suppress(OSError):
                path.unlink()


def _take_or_wait(path: Path, token: str, timeout: float, expiry: float) -> Lease:
    begin = time.monotonic()
    seen: tuple[int, str] | None = None
    unchanged_since = begin
    pause = 0.02
    while True:
        waited = time.monotonic() - begin
        try:
            if _create(path, token):
                return Lease(path, True, waited)
            try:
                now = (path.lstat().st_mtime_ns, str(_holder(path).get("token")))
            except FileNotFoundError:
                continue  # released between the two calls
        except OSError as error:
            log.info("lease %s: %s; compiling without it", path.name, error.strerror or error)
            return Lease(path, False, waited)
        if now != seen:
            seen, unchanged_since = now, time.monotonic()
        if time.monotonic() - unchanged_since > expiry or _is_dead(_holder(path)):
            _break(path, now[1])
            continue
        if waited > timeout:
            log.warning("lease %s: still held after %.0f s; compiling without it", path.name, waited)
            return Lease(path, False, waited)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _create(path: Path, token: str) -> bool:
    """Make the lease file, or False when somebody holds it."""
    holder = pack({"token": token, "pid": os.getpid(), "place": _place(), "started": _started(os.getpid())})
    try:
        Folder(path.parent.parent).make_folder(path.parent)
    except FileExistsError as error:  # a file or a broken link: nobody holds anything there
        raise NotADirectoryError(errno.ENOTDIR, f"something that is no folder is in the way at {error.filename}") from error
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, holder)
    finally:
        os.close(descriptor)
    return True


def _holder(path: Path) -> dict[str, object]:
    """Who holds it, as far as the file says; empty when it is gone or being written."""
    try:
        record = unpack(read_file(path), path.name)
    except (OSError, DamagedRecord):
        return {}
    return record if isinstance(record, dict) else {}


def _is_dead(holder: dict[str, object]) -> bool:
    pid, place = holder.get("pid"), holder.get("place")
    if not isinstance(pid, int) or place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return _started(pid) != holder.get("started")


def _break(path: Path, token: str) -> None:
    """Take a dead holder's lease away. Renamed first and looked at again: if another taker was quicker, the file is a live one."""
    aside = path.with_name(f"{path.name}.dead-{secrets.token_hex(4)}")
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        if str(_holder(aside).get("token")) != token:
            with contextlib.suppress(OSError):
                os.link(aside, path)
        else:
            log.info("lease %s: its holder is gone; taking over", path.name)
        aside.unlink()


def _beat(path: Path, stop: threading.Event, every: float) -> None:
    while not stop.wait(every):
        try:
            os.utime(path)
        except OSError:
            return  # gone or unwritable: the others take over, and nothing here depends on holding it


def _place() -> str:
    """Where a process id means something: this boot of this kernel and this pid namespace, or the host's name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _started(pid: int) -> str:
    """A mark that tells a process from a later one with the same id; empty where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
