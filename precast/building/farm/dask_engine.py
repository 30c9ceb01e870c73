"""dask: jobs go to the workers of a `distributed` cluster through its own client."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import tempfile
import time
import uuid
from typing import Any

from precast.building.farm.executor import Heard, Job, Place
from precast.building.ledger import Stopped
from precast.building.usable import cores

CONNECT_SECONDS = 15.0
LOOK_SECONDS = 0.5
"""How often the scheduler is asked which workers are there."""
FETCH_SECONDS = 30.0
"""How long the answer of a finished job is waited for, which its worker holds."""


class Dask:
    """A client of one scheduler; for `dask://local` that of a cluster of processes on this machine, which end with it."""

    def __init__(self, place: Place) -> None:
        try:
            import distributed
        except ImportError as error:
            raise Stopped("--executor dask://… needs the package distributed: pip install 'precast[dask]'", usage=True) from error
        self.place = place.url
        self._cluster: Any = None
        self._folder = contextlib.ExitStack()
        self._keys = itertools.count()
        self._prefix = f"precast-build-{uuid.uuid4().hex[:12]}"
        self._running: dict[str, Any] = {}
        self._ended: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._alive: list[str] = []
        self._looked = -1.0
        try:
            if not place.address:
                self._cluster = self._begin(place.workers or cores())
            scheme = "tls" if place.engine == "dask+tls" else "tcp"
            address = self._cluster or f"{scheme}://{place.address}"
            self._client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="precast-build")
        except (OSError, RuntimeError, ValueError) as error:
            self._end_cluster()
            what = "the workers could not be started" if not place.address else "no dask scheduler answers there"
            raise Stopped(
                f"--executor {place.url}: {what} ({type(error).__name__}: {error}); `dask scheduler` starts one", usage=False
            ) from error

    def _begin(self, workers: int) -> Any:
        import distributed

        folder = self._folder.enter_context(tempfile.TemporaryDirectory(prefix="precast-dask-", ignore_cleanup_errors=True))
        return distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=folder,
            env={"TMPDIR": folder},  # so that nothing is left of a worker that is killed
            silence_logs=logging.CRITICAL,
            memory_limit=0,  # memory is what compiles need; the machine's own limit says when it is too much
        )

    def workers(self) -> list[str]:
        """Addresses, by which dask knows them. One that its nanny starts anew has a new port."""
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS or self._looked < 0:
            self._looked = now
            try:
                self._alive = list(self._client.nthreads())
            except (OSError, TimeoutError, RuntimeError) as error:
                raise Stopped(
                    f"{self.place}: the scheduler is gone ({type(error).__name__}: {error}); what was built is stored, the same command "
                    "goes on with the rest",
                    usage=False,
                ) from error
        return self._alive

    def give(self, worker: str, job: Job) -> None:
        """Pinned to the worker: it holds the program that the last job made, and where it dies this is heard of, and not hidden."""
        from precast.building.farm.work import run

        key = f"{self._prefix}-{next(self._keys)}"
        future = self._client.submit(run, dict(job), key=key, workers=[worker], allow_other_workers=False, pure=False, retries=0)
        self._running[worker] = future
        future.add_done_callback(lambda done: self._ended.put((worker, done)))

    def hear(self, seconds: float) -> list[Heard]:
        """Answers as they come; the scheduler is asked for the living from time to time."""
        found: list[Heard] = []
        with contextlib.suppress(queue.Empty):
            while True:
                worker, future = self._ended.get(timeout=seconds if not found else 0)
                if self._running.get(worker) is future:
                    del self._running[worker]
                    found.append(self._heard(worker, future))
        alive = set(self.workers())
        for worker in [worker for worker in self._running if worker not in alive]:
            future = self._running.pop(worker)
            future.cancel(force=True)
            found.append(Heard(worker, lost=f"worker {worker} is gone"))
        return found

    def _heard(self, worker: str, future: Any) -> Heard:
        import distributed

        try:
            return Heard(worker, answer=future.result(timeout=FETCH_SECONDS))
        except distributed.scheduler.KilledWorker:
            return Heard(worker, lost=f"worker {worker} died")
        except (TimeoutError, distributed.client.FutureCancelledError, distributed.comm.CommClosedError) as error:
            return Heard(worker, lost=f"worker {worker} is gone before its answer was fetched ({type(error).__name__})")
        except Exception as error:  # noqa: BLE001 - whatever the worker raised: the farm says it, and leaves the worker out
            return Heard(worker, broken=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Jobs that run on a cluster of others end by themselves: dask interrupts none. What they store is of use to the next build."""
        for future in self._running.values():
            with contextlib.suppress(Exception):
                future.cancel(force=True)
        self._running.clear()
        with contextlib.suppress(TimeoutError):
            self._client.close(timeout=5)
        self._end_cluster()

    def _end_cluster(self) -> None:
        if self._cluster is not None:
            with contextlib.suppress(TimeoutError):
                self._cluster.close(timeout=10)
        self._folder.close()
