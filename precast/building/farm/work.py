"""What a worker of a farm does: one job at a time, given as plain data, answered as plain data.

The engine calls `run` (dask) or `Hand.run` (ray) in a process of its own. That process keeps the program that it made last, since the next
job is most likely about the same, and opens the store once for each build.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precast import __version__
from precast.artifact_store import Store, StoreError
from precast.artifact_store.remote.endpoint import EndpointError
from precast.building.build_file import BuildFileError, ProgramSpec, load
from precast.building.build_job import Job
from precast.building.update_job import job_of
from precast.building.usable import peak_memory
from precast.building.worker_pool import prepare
from precast.compiling.exclusive import part
from precast.compiling.provenance import Asked, wish
from precast.report.user_frames import frames_of
from precast.runtime.common.errors import CompilerBroken, OptionError, StoreUnwritable
from precast.runtime.programs.remote_lookup import Wants
from precast.runtime.targets.ladder import resolve
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor

log = logging.getLogger("precast.driver")
Answer = dict[str, Any]
SEND_SECONDS = 120.0
"""How long a job waits for what it made to be in the remotes."""
_one_at_a_time = threading.Lock()


def versions() -> dict[str, str]:
    """What has to be equal on all machines of a build: it decides the artifacts' ids, or what a job means."""
    return {"precast": __version__, "lowering": LOWERING_VERSION, "torch": torch_minor(), "Python": python_minor()}


@dataclass
class Held:
    """What this process keeps between jobs of the build `build`: its store, and the program with the number `program`."""

    build: str
    store: Store
    program: int | None = None
    job: Job | None = None
    scratch: bool = False


_held: Held | None = None


class Unsent(Exception):
    """What was built could not be sent to the build's remote, and so is lost with this worker's folder."""


class Hand:
    """The class of ray's actors."""

    def run(self, job: Mapping[str, Any]) -> Answer:
        """As `run`."""
        return run(job)


def run(job: Mapping[str, Any]) -> Answer:
    """Do one job. The answer's `kind`: "fit", "loaded" or "built" where all went well; "failed", that the program is at fault; "stopped",
    that the build is; "unfit", that this worker is.
    """
    with _one_at_a_time:  # an engine may have several threads, and compiling has one
        if job["versions"] != versions():
            return {"kind": "unfit", "text": _differing(job["versions"])}
        if job["kind"] == "end":
            _let_go()
            return {"kind": "over"}
        wish.asked = Asked.from_data(job["provenance"]) if job["provenance"] is not None else None
        part.alone, part.shared_by = _turn_on_this_machine, max(1, int(job["shared_by"]))
        try:
            return _fit(job) if job["kind"] == "probe" else _work(job)
        except BuildFileError as error:
            return {"kind": "failed", "text": f"on {platform.node()}: {error}"}
        except OptionError as error:
            return {"kind": "stopped", "text": f"{job['spec']['where']}: {error}", "usage": True}
        except (StoreError, StoreUnwritable, CompilerBroken, Unsent) as error:
            return {"kind": "unfit", "text": str(error)}


def _differing(wanted: Mapping[str, str]) -> str:
    own = versions()
    names = [name for name in wanted if wanted[name] != own.get(name)]
    here, there = (", ".join(f"{name} {found.get(name, 'unknown')}" for name in names) for found in (own, wanted))
    return f"it has {here}, and this machine {there}: artifacts of the two do not mix; install the same on both"


def _fit(job: Mapping[str, Any]) -> Answer:
    """What this worker is, once it is known that it can work for the build."""
    held = _for_build(job)
    held.store.check_writable()
    if not held.store.programs():  # so that all will be compiled
        prepare(held.store)
    return {"kind": "fit", "host": platform.node(), "pid": os.getpid()}


def _for_build(job: Mapping[str, Any]) -> Held:
    global _held
    if _held is None or _held.build != job["build"]:
        _let_go()
        _held = Held(job["build"], _store(job), scratch=bool(job["remotes"]))
    return _held


def _let_go() -> None:
    """Keep nothing of a build that is over, a folder of its own neither."""
    global _held
    if _held is not None and _held.scratch:
        if _held.store.remotes is not None:
            _held.store.remotes.close()
        shutil.rmtree(_held.store.root, ignore_errors=True)
    _held = None
    gc.collect()


def _store(job: Mapping[str, Any]) -> Store:
    """The build's store: a folder of this worker's own before remotes, else the one that all share. Raises StoreError where this machine
    does not see that.
    """
    if job["remotes"]:
        from precast.artifact_store.remote.attach import open_tiers
        from precast.artifact_store.remote.settings import Setting

        settings = [Setting(**setting) for setting in job["remotes"]]
        for tier in open_tiers(settings):  # what is wrong is said now
            try:
                tier.endpoint.has("v1/programs/none")
            except EndpointError as error:
                raise StoreError(f"it does not reach the remote {tier.place}: {error}") from error
            finally:
                tier.endpoint.close()
        scratch = tempfile.mkdtemp(prefix="precast-farm-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)  # where it is ended before the build says so
        return Store.open(scratch, strict=True, remote=settings)
    root = Path(job["store"])
    if job["mark"] and not Store.open(root, readonly=True, remote=()).is_leased(job["mark"]):
        raise StoreError(
            f"it does not see the store {root} of this machine: put the store on a folder that all machines share, under one path, or "
            "give --remote, and each worker builds in a folder of its own"
        )
    return Store.open(root, readonly=False, strict=True, remote=())


def _work(job: Mapping[str, Any]) -> Answer:
    held = _for_build(job)
    begin = time.perf_counter()
    if held.job is None or held.program != job["program"]:
        held.program = held.job = None  # its memory first
        given = job["spec"]
        spec = ProgramSpec(**{**given, "targets": tuple(given["targets"]), "recorded": tuple(given["recorded"])})
        if absent := [path for path in job["needed"] if not Path(path).exists()]:
            raise BuildFileError(f"{spec.where}: recorded calls are not there: {absent[0]}; put them where all workers see them")
        try:
            held.job = job_of(load(spec, job["path"]), held.store)
        except BuildFileError:
            raise
        except (Exception, SystemExit) as error:  # a factory is the user's code and may raise anything
            log.info("%s", spec.name, exc_info=error)
            said = f"{spec.where}: factory {spec.factory} failed: {type(error).__name__}: {error}"
            return {"kind": "failed", "text": "\n".join([said, *frames_of(error)])}
        held.program = job["program"]
    making = time.perf_counter() - begin
    if job["kind"] == "load":
        count, key = len(held.job.loaded.signatures), held.job.key(job["target"])
        return {
            "kind": "loaded",
            "count": count,
            "key": key,
            "seconds": making,
            "busy": time.perf_counter() - begin,
            "memory": peak_memory(),
        }
    _fetch(held.job, job["target"])
    outcome = held.job.build(job["number"], job["target"])
    _send(held.store)
    return {"kind": "built", "outcome": asdict(outcome), "busy": time.perf_counter() - begin, "memory": peak_memory()}


def _fetch(job: Job, target: str) -> None:
    """Bring what other workers have made of the program, from which this compile learns, as it would in one process."""
    remotes, key = job.store.remotes, job.key(target)
    if remotes is not None and key:
        remotes.look(key, Wants(resolve(target)))
        remotes.refresh(key)


def _send(store: Store) -> None:
    """Wait until all that was made is in the remotes. Raises Unsent."""
    if store.remotes is None:
        return
    if not store.remotes.uploads.flush(SEND_SECONDS):
        store.remotes.uploads.drain()
    if refusing := store.remotes.uploads.refusing():
        raise Unsent(f"{', '.join(refusing)} refuses what it sends; give the workers credentials that may write there (PRECAST_LOGS=store)")
    if left := store.remotes.uploads.drain():
        raise Unsent(f"what it built could not be sent to {left[0].remote} (PRECAST_LOGS=store on the worker says why)")


@contextlib.contextmanager
def _turn_on_this_machine() -> Iterator[None]:
    """Of several workers on one machine one measures at a time. Unlike the processes of `--jobs` the others go on compiling: what a farm
    measures is rougher.
    """
    try:
        import fcntl

        file = os.open(Path(tempfile.gettempdir()) / f"precast-measure-{os.getuid()}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError) as error:
        log.info("several workers of this machine may measure at once: %s", error)
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
