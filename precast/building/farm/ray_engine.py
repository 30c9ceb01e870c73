"""ray: jobs go to actors of a ray cluster, one for each core that it has free, through its own client."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from precast.building.farm.executor import Heard, Job, Place
from precast.building.ledger import Stopped
from precast.building.usable import cores

GROW_SECONDS = 5.0
"""How often it is looked whether the cluster has room for more actors."""


class Ray:
    """A connection to one cluster; for `ray://local` one is started on this machine, which ends with it."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # ray would report its use to its makers
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            import ray
        except ImportError as error:
            raise Stopped("--executor ray://… needs the package ray: pip install 'precast[ray]'", usage=True) from error
        self.place = place.url
        self._ray: Any = ray
        self._most = place.workers or (None if place.address else cores())
        quiet = {"log_to_driver": False, "configure_logging": False}
        try:
            if place.address:
                ray.init(address=f"ray://{place.address}", **quiet)
            else:
                ray.init(num_cpus=self._most, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except Exception as error:
            what = "no ray cluster answers there (a client server listens on port 10001)" if place.address else "ray could not be started"
            raise Stopped(f"--executor {place.url}: {what}: {type(error).__name__}: {error}", usage=False) from error
        from precast.building.farm.work import Hand

        self._kind = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Hand)
        self._actors: dict[str, Any] = {}
        self._running: dict[Any, str] = {}
        self._made = 0
        self._looked = -GROW_SECONDS

    def workers(self) -> list[str]:
        """Actors; new ones are made in place of those that died, and where nodes joined."""
        now = time.monotonic()
        if now - self._looked >= GROW_SECONDS or (self._most is not None and len(self._actors) < self._most):
            self._looked = now
            room = self._most - len(self._actors) if self._most is not None else int(self._ray.available_resources().get("CPU", 0))
            for _ in range(max(0, room)):
                self._made += 1
                self._actors[f"actor {self._made}"] = self._kind.remote()
        return list(self._actors)

    def give(self, worker: str, job: Job) -> None:
        self._running[self._actors[worker].run.remote(dict(job))] = worker

    def hear(self, seconds: float) -> list[Heard]:
        if not self._running:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        if ready:  # whatever else has ended, too
            ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        return [self._heard(self._running.pop(reference), reference) for reference in ready]

    def _heard(self, worker: str, reference: Any) -> Heard:
        try:
            return Heard(worker, answer=self._ray.get(reference))
        except self._ray.exceptions.RayActorError as error:
            self._actors.pop(worker, None)
            said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            return Heard(worker, lost=f"{worker} died: {said}")
        except Exception as error:  # noqa: BLE001 - whatever the worker raised: the farm says it, and leaves the worker out
            return Heard(worker, broken=f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Ends the actors, whatever they are at, and leaves the cluster."""
        for actor in self._actors.values():
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
        self._actors.clear()
        self._running.clear()
        self._ray.shutdown()
