"""An engine whose workers are a table of functions in this process, for tests of the farm's loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from precast.building.farm.executor import Heard, Job
from precast.building.farm.work import versions

Worker = Callable[[str, Job], Heard]
"""Called with its own name."""


def honest(name: str, job: Job) -> Heard:
    """Answers as a worker does that compiled; a program's key is its name, and it has two signatures."""
    if job["versions"] != versions():
        return Heard(name, answer={"kind": "unfit", "text": "other versions"})
    if job["kind"] == "probe":
        return Heard(name, answer={"kind": "fit", "host": f"host of {name}", "pid": 1})
    if job["kind"] == "end":
        return Heard(name, answer={"kind": "over"})
    if job["kind"] == "load":
        return Heard(name, answer={"kind": "loaded", "count": 2, "key": job["spec"]["name"], "seconds": 0.0, "memory": 1})
    outcome = {"program": job["spec"]["name"], "signature": job["number"], "target": job["target"], "status": "compiled"}
    return Heard(name, answer={"kind": "built", "outcome": {**outcome, "artifact": "a" * 64, "seconds": 0.1}, "busy": 0.1, "memory": 1})


def dies_at(place: Callable[[Job], bool]) -> Worker:
    """Honest, but for jobs at which it dies."""
    return lambda name, job: Heard(name, lost="it was killed") if job["kind"] != "end" and place(job) else honest(name, job)


def answers(kind: str, **more: Any) -> Worker:
    return lambda name, job: Heard(name, answer={"kind": kind, **more})


class Engine:
    """`spares`: workers that come when another is lost. `given`: all jobs, with their workers."""

    place = "fake://here"

    def __init__(self, workers: Mapping[str, Worker], spares: Mapping[str, Worker] | None = None) -> None:
        self.here = dict(workers)
        self.spares = dict(spares or {})
        self.given: list[tuple[str, Job]] = []
        self._pending: list[tuple[str, Job]] = []

    def workers(self) -> list[str]:
        return list(self.here)

    def give(self, worker: str, job: Job) -> None:
        assert worker not in [name for name, _ in self._pending], "one job at a time"
        self.given.append((worker, job))
        self._pending.append((worker, job))

    def hear(self, seconds: float) -> list[Heard]:
        """One answer at a time, the latest job's and the earliest's in turn: workers are of different speeds."""
        if not self._pending:
            return []
        worker, job = self._pending.pop(-(len(self.given) % 2))
        heard = self.here[worker](worker, job)
        if heard.lost:
            del self.here[worker]
            if self.spares:
                name = next(iter(self.spares))
                self.here[name] = self.spares.pop(name)
        return [heard]

    def close(self) -> None:
        self.here.clear()
