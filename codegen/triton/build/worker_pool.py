"""A pool of worker processes that compile Triton kernels, on machines with enough cores.

A fifth of a kernel's compilation is Python code, which threads cannot run in parallel. The workers are started before a program is
captured, which takes seconds, so that they have imported Triton when kernels arrive. They are optional: where a worker fails, or there
are none, kernels are compiled in this process.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack

from precast.codegen.triton.build import worker as triton_worker
from precast.codegen.triton.build.worker import LENGTH

log = logging.getLogger("precast.compile")

FEW_CORES = 8
"""With fewer cores the main thread's own work would suffer."""
MOST_WORKERS = 8
FEW_KERNELS = 6
"""With fewer kernels threads are as fast."""
IDLE_SECONDS = 20.0
"""Seconds for which the processes stay after their last use."""
PATIENCE = 60.0
"""Seconds after which a worker that compiles one kernel counts as stuck. Most take one second, a few of them ten."""

_START = (
    "import json, runpy, sys; start = json.loads(sys.argv[1]); sys.path[:] = start['path']; "
    "sys.dont_write_bytecode, sys.pycache_prefix = start['bytecode']; runpy.run_path(start['file'], run_name='__main__')"
)
_PYTHON = re.compile(r"python[\d.]*[dt]*")
_SETTINGS = re.compile(r"(TRITON|MLIR|LLVM|NVPTX|PTXAS|DISABLE_PTXAS|USE_IR_LOC)")
_PLACES = ("TRITON_HOME", "TRITON_CACHE_DIR", "TRITON_DUMP_DIR", "TRITON_OVERRIDE_DIR", "TRITON_INTERPRET")
"""What `clean_settings` sets, and folders of what it switches off."""


class WorkerLost(Exception):
    """A worker died, or answered wrongly; the message says how."""


class Worker:
    """One worker process and its two pipes, used by one thread at a time. It takes kernels once `ready` is true."""

    def __init__(self, command: list[str]) -> None:
        """Starts it; OSError where that cannot be done."""
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, process_group=0
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._pipes = (self.process.stdin, self.process.stdout)
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
        self._said_hello = False
        self.pid = self.process.pid
        self.lost = False

    def ready(self, seconds: float) -> bool:
        """Whether it can take kernels, after waiting at most `seconds`. Raises `WorkerLost`, also where its Triton is another version."""
        if self._said_hello:
            return True
        if not _wait(self._from, select.POLLIN, time.monotonic() + seconds):
            return False
        said = _unpacked(self._receive(time.monotonic() + PATIENCE))
        if said != triton_worker.identity():
            raise WorkerLost(f"it has another Python or Triton: {said!r}"[:300])
        self._said_hello = True
        return True

    def image(self, task: Mapping[str, Any], seconds: float = PATIENCE) -> tuple[bytes, dict[str, Any]] | None:
        """The image and metadata of a kernel; None where Triton refused it. Raises `WorkerLost`."""
        end = time.monotonic() + seconds
        data = msgpack.packb(task)
        self._send(LENGTH.pack(len(data)) + data, end)
        answer = _unpacked(self._receive(end))
        match answer:
            case {"image": bytes(image), "metadata": {"entry": str(), "block": int(), "shared": int()} as metadata}:
                return image, metadata
            case {"error": str()}:
                return None
        raise WorkerLost("it answered with something else than an image")

    def end(self) -> None:
        """Ends the process, whatever it is doing."""
        self.lost = True
        self.kill()
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def give_up(self, why: object) -> None:
        """Ends the process, and logs why."""
        self.end()
        log.info("process %d, which was to compile kernels, is not used any more: %s; threads of this process do its work", self.pid, why)

    def kill(self) -> None:
        """Ends the process from another thread than the one that uses it, which then gets `WorkerLost`."""
        with suppress(OSError):
            self.process.kill()

    def forget(self) -> None:
        """Called in a forked child: closes the pipes, which belong to the parent."""
        self.lost = True
        self.process.returncode = 0  # no wait for it in this process
        for pipe in self._pipes:
            with suppress(OSError):
                pipe.close()

    def _send(self, data: bytes, end: float) -> None:
        rest = memoryview(data)
        try:
            while rest:
                if not _wait(self._to, select.POLLOUT, end):
                    raise WorkerLost("it does not read")
                rest = rest[os.write(self._to, rest) :]
        except OSError as error:
            raise WorkerLost(f"it has ended ({error.strerror})") from error

    def _receive(self, end: float) -> bytes:
        (length,) = LENGTH.unpack(self._read(LENGTH.size, end))
        if length > 1 << 28:
            raise WorkerLost("it answered with something else than a message")
        return self._read(length, end)

    def _read(self, length: int, end: float) -> bytes:
        data = bytearray()
        while len(data) < length:
            if not _wait(self._from, select.POLLIN, end):
                raise WorkerLost(f"it said nothing for {PATIENCE:.0f} s")
            try:
                more = os.read(self._from, length - len(data))
            except OSError as error:
                raise WorkerLost(f"it cannot be read from ({error.strerror})") from error
            if not more:
                raise WorkerLost("it has ended")
            data += more
        return bytes(data)


class Pool:
    """Workers that were started together, and the settings that they were started with."""

    def __init__(self, count: int, command: list[str] | None = None, lock: int = -1) -> None:
        """Starts `count` processes, or as many as can be started. `lock` is a descriptor that is held as long as they live."""
        self.settings = settings()
        self.workers: list[Worker] = []
        self._lock = lock
        try:
            for _ in range(count):
                self.workers.append(Worker(command or start_command()))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            log.info("kernels are compiled in threads: a process for them could not be started: %s", error)

    def alive(self) -> list[Worker]:
        """The workers that have not failed."""
        for worker in self.workers:
            if not worker.lost and worker.process.poll() is not None:
                worker.give_up("it has ended")
        return [worker for worker in self.workers if not worker.lost]

    def end(self) -> None:
        """Ends them all."""
        for worker in self.workers:
            worker.end()
        self._unlock()

    def forget(self) -> None:
        """In a forked child, where they are the parent's."""
        for worker in self.workers:
            worker.forget()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Keeper:
    """Owns the one pool of this process, and ends it some time after its last use."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.pool: Pool | None = None
        self.timer: threading.Timer | None = None
        self.users = 0

    def begin(self, count: int | None = None) -> None:
        """Starts missing workers: up to `count`, or as many as suit this machine."""
        with self.guard:
            if self.pool is not None and self.users == 0 and not (self.pool.settings == settings() and self.pool.alive()):
                self._end()
            wanted = worker_count() if count is None else count
            if self.pool is None and wanted and (lock := _only_one()) is not None:
                self.pool = Pool(wanted, lock=lock)
            self._again()

    def take(self) -> list[Worker]:
        """The workers, if they would compile as this process does. The caller calls `give_back` in any case."""
        with self.guard:
            pool = self.pool
            self.users += 1
            usable = pool is not None and self.users == 1 and pool.settings == settings() and plain_settings()
            return pool.alive() if pool is not None and usable else []

    def give_back(self) -> None:
        """Ends a use of the workers: called after a compilation."""
        with self.guard:
            self.users -= 1
            self._again()

    def _again(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.pool is not None:
            self.timer = threading.Timer(IDLE_SECONDS, self.end_idle)
            self.timer.daemon = True
            self.timer.name = "precast-triton-idle"
            try:
                self.timer.start()
            except RuntimeError:  # no thread can be started, or the interpreter is ending
                self.timer = None
                if self.users == 0:
                    self._end()

    def end_idle(self) -> None:
        """Ends the processes, unless they are in use."""
        with self.guard:
            if self.users == 0:
                self._end()

    def _end(self) -> None:
        if self.pool is not None:
            self.pool.end()
            self.pool = None


_keeper = Keeper()


def begin() -> threading.Thread | None:
    """Starts the workers in a thread (eight take a tenth of a second), where this machine has cores for them. None where no thread can be
    started. A machine without room for them raises nothing.
    """

    def start() -> None:
        with suppress(OSError, RuntimeError):
            _keeper.begin()

    thread = threading.Thread(target=start, name="precast-triton-start", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


@contextmanager
def taken(kernels: int) -> Iterator[list[Worker]]:
    """A context with the workers for a compilation of `kernels` kernels, ready or not; they are not ended inside it."""
    keeper = _keeper
    workers = keeper.take()
    try:
        yield workers if kernels >= FEW_KERNELS else []
    finally:
        keeper.give_back()


def worker_count() -> int:
    """How many workers this process may start: half its cores; none where there are few cores, or no plain Python to start."""
    cores = usable_cores()
    python = sys.executable and _PYTHON.fullmatch(Path(sys.executable).name) and not getattr(sys, "frozen", False)
    if cores < FEW_CORES or not python or not os.path.isfile(triton_worker.__file__) or not plain_settings():
        return 0
    return min(MOST_WORKERS, cores // 2)


def usable_cores() -> int:
    """Cores that this process may use, limited by its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def start_command() -> list[str]:
    """The command of a worker: this Python, isolated from the environment, with this process's present `sys.path`."""
    import triton

    homes = [str(Path(str(module.__file__)).parents[1]) for module in (triton, msgpack)]
    path = [entry for entry in sys.path if isinstance(entry, str)]
    path += [home for home in homes if home not in path]  # found by an editable install's hook
    start = {"path": path, "file": triton_worker.__file__, "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix]}
    return [sys.executable, "-I", "-S", "-c", _START, json.dumps(start)]


def settings() -> dict[str, str]:
    """The environment variables that influence how Triton compiles."""
    return {name: value for name, value in os.environ.items() if _SETTINGS.match(name) and name not in _PLACES}


def plain_settings() -> bool:
    """Whether Triton's settings in this process are those of a fresh process, and nothing is to be printed or dumped."""
    from triton import knobs

    groups = (knobs.build, knobs.cache, knobs.compilation, knobs.runtime, knobs.language, knobs.nvidia)
    said = any(word in name for name in settings() for word in ("DUMP", "DEBUG", "TIMING", "REPRODUCER", "OVERRIDE", "PRINT", "LOC"))
    return not said and not any(group.__dict__ for group in groups)


def _only_one() -> int | None:
    """A lock that one process of this user holds at a time, so that only one has a pool: many that compile at once use all cores anyway."""
    try:
        import fcntl
    except ImportError:
        return None
    path = os.path.join(tempfile.gettempdir(), f"precast-triton-{os.getuid()}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


def _wait(pipe: int, event: int, end: float) -> bool:
    """Whether the pipe can be read from (or written to, or is closed) before `end`."""
    poll = select.poll()  # unlike `select`, for any number
    poll.register(pipe, event)
    return bool(poll.poll(max(0.0, end - time.monotonic()) * 1000))


def _unpacked(data: bytes) -> Any:
    try:
        return msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException) as error:
        raise WorkerLost("it answered with something else than a message") from error


def _forked() -> None:
    """Called in a forked child, which has no threads: drops the parent's workers."""
    global _keeper
    pool, _keeper = _keeper.pool, Keeper()
    if pool is not None:
        pool.forget()


atexit.register(lambda: _keeper.end_idle())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
