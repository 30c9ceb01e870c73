"""What the rows of the fault table share: artifacts whose every byte is known, children that are killed, and what is counted.

Counted are wrong answers (something was served whose bytes are not those that were made), crashes (an exception on a path that must not
raise, or a death that the row did not cause), and lost artifacts (reported as stored, not damaged by the row itself, and not served).
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, lru_cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest import mock

from precast.artifact_store import BlobSet, Manifest, Store, StoreError
from precast.artifact_store.trust.trusted import content_of
from tests.artifact_store.sample import make

KEY = "model-0123abcd"
SIZE = 20_000
"""Bytes of an artifact's library."""
_MEMORY = Path("/dev/shm")
"""A filesystem that does not wait for a disk: what is synced is tested elsewhere, and a killed process loses nothing by it."""
_server = multiprocessing.get_context("forkserver")


@cache
def _start_server() -> None:
    """Starts what children are forked from, with all that they import: Python 3.11 does not hand this process's `sys.path` on to it."""
    _server.set_forkserver_preload(["fault_tools", "fault_rows_local", "fault_rows_remote"])
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    with mock.patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(folders)}):
        forkserver.ensure_running()


@lru_cache(maxsize=4096)
def artifact(number: int) -> tuple[Manifest, BlobSet]:
    """The artifact with this number: the same bytes in every process."""
    return make(number, size=SIZE)


@dataclass
class Tally:
    """What came of the cycles of one row. `served`: artifacts that were read whole and right; `why`: the first few faults, in words."""

    cycles: int = 0
    served: int = 0
    misses: int = 0
    wrong: int = 0
    crashed: int = 0
    lost: int = 0
    seconds: float = 0.0
    why: list[str] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def good(self) -> bool:
        """Whether nothing of what must not happen happened."""
        return not (self.wrong or self.crashed or self.lost)

    def fault(self, kind: str, count: int, text: str) -> None:
        """Something that must not happen did."""
        setattr(self, kind, getattr(self, kind) + count)
        if len(self.why) < 8:
            self.why.append(f"{kind}: {text}")


@dataclass
class Cycle:
    """One cycle of one row: a folder of its own, chance from the seed, and the tally."""

    folder: Path
    chance: random.Random
    tally: Tally

    @property
    def root(self) -> Path:
        """The store of the one machine, or the first of several."""
        return self.folder / "store"

    @contextmanager
    def must_not_raise(self, what: str) -> Iterator[None]:
        """What is done within counts as a crash where it raises."""
        try:
            yield
        except Exception:  # noqa: BLE001 - whatever it is, it is counted and shown
            self.tally.fault("crashed", 1, f"{what}: {traceback.format_exc()[-600:]}")

    def put(self, store: Store, numbers: Iterable[int]) -> set[int]:
        """Stores artifacts as a call does. The numbers of those that were reported as stored."""
        done = set()
        with self.must_not_raise("put"):
            for number in numbers:
                if not store.try_put(*artifact(number)):
                    done.add(number)
        return done

    def read(self, store: Store) -> set[int]:
        """Reads as a warm start does, in a store that was opened anew: the numbers of the artifacts that were served whole."""
        served = set()
        with self.must_not_raise("read"):
            for document in store.trusted_variants(KEY):
                manifest = content_of(document)
                number = manifest.options["number"]
                right, blobs = artifact(number) if type(number) is int else (None, BlobSet())
                if right is None or manifest.to_bytes() != right.to_bytes():
                    self.tally.fault("wrong", 1, f"manifest {manifest.artifact_id[:12]} is not what was made")
                    continue
                files = [store.blob_path(blob) for blob in manifest.blobs]
                if None in files:
                    self.tally.misses += 1
                elif any(file is not None and file.read_bytes() != blobs[name] for name, file in zip(manifest.blobs, files, strict=True)):
                    self.tally.fault("wrong", 1, f"a blob of artifact {number} is not what was made")
                else:
                    served.add(number)
        self.tally.served += len(served)
        return served

    def expect(self, store: Store, reported: set[int], when: str) -> None:
        """All that was reported as stored has to be served."""
        missing = reported - self.read(store)
        if missing:
            self.tally.fault("lost", len(missing), f"{when}: artifacts {sorted(missing)[:5]} were reported as stored and are not served")


@dataclass
class Child:
    """Another process at work. `told`: what it reported, line by line, before it ended or was killed."""

    process: ForkServerProcess
    pipe: Connection
    told: list[Any] = field(default_factory=list)

    def wait_for_word(self, seconds: float = 30.0) -> None:
        """Until it has reported something."""
        if self.pipe.poll(seconds):
            self._hear()

    def _hear(self) -> bool:
        try:
            self.told.append(self.pipe.recv())
        except (EOFError, OSError):
            return False
        return True

    def kill(self) -> None:
        """SIGKILL, wherever it is."""
        if self.process.pid is not None and self.process.exitcode is None:
            os.kill(self.process.pid, signal.SIGKILL)

    def end(self, cycle: Cycle, seconds: float = 60.0) -> list[Any]:
        """Waits for its end. A death that nobody caused, or none at all, is a crash."""
        while self._hear():
            pass
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            self.kill()
            self.process.join()
            cycle.tally.fault("crashed", 1, f"a process did not end within {seconds:.0f} s")
        elif code not in (0, -signal.SIGKILL):
            cycle.tally.fault("crashed", 1, f"a process ended with {code}: {self.told[-1:]}")
        self.pipe.close()
        return self.told


def _run(work: Callable[..., None], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        work(pipe.send, *arguments)
    except Exception:  # noqa: BLE001 - told, and then seen by its exit code
        pipe.send(traceback.format_exc()[-800:])
        os._exit(70)


def start(work: Callable[..., None], *arguments: Any) -> Child:
    """`work(tell, *arguments)` in a process of its own, which knows nothing of this one's threads."""
    _start_server()
    here, there = _server.Pipe(duplex=False)
    process = _server.Process(target=_run, args=(work, there, arguments), daemon=True)
    process.start()
    there.close()
    return Child(process, here)


def write_many(tell: Callable[[int], None], root: str, first: int, last: int) -> None:
    """Puts artifacts and tells of each that was reported as stored."""
    store = Store.open(root)
    for number in range(first, last):
        if not store.try_put(*artifact(number)):
            tell(number)


def write_until_refused(tell: Callable[[object], None], root: str, first: int, last: int) -> None:
    """The same with `put`, until the store says why it cannot."""
    store = Store.open(root)
    for number in range(first, last):
        try:
            store.put(*artifact(number))
        except StoreError as error:
            tell(str(error))
            return
        tell(number)


Row = Callable[[Cycle], None]


def run_row(row: Row, cycles: int, seed: int, within: float = 1e9) -> Tally:
    """So many cycles of a row; fewer where they take longer than `within` seconds in all."""
    tally, begin = Tally(), time.perf_counter()
    for number in range(cycles):
        if time.perf_counter() - begin > within:
            break
        folder = Path(tempfile.mkdtemp(prefix="precast-faults-", dir=_MEMORY if _MEMORY.is_dir() else None))
        cycle = Cycle(folder, random.Random(f"{seed}/{row.__name__}/{number}"), tally)
        try:
            with cycle.must_not_raise("the row itself"):
                row(cycle)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        tally.cycles += 1
    tally.seconds = time.perf_counter() - begin
    return tally
