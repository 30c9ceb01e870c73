"""What a farm asks of an engine (dask, ray): which workers there are, to run a job on one of them, and to say what became of it.

Scheduling, transport and starting workers is the engine's. A job and its answer are plain data (texts, numbers, lists, maps), so that
workers of another version can at least read it and say so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from precast.building.ledger import Stopped

Job = Mapping[str, Any]
ENGINES = ("dask", "dask+tls", "ray")


@dataclass(frozen=True)
class Heard:
    """What became of the job that `worker` was given: its answer; or `lost`, that the worker is gone; or `broken`, that it is there and
    could not run the job (precast is not installed there, say).
    """

    worker: str
    answer: Mapping[str, Any] | None = None
    lost: str = ""
    broken: str = ""


class Executor(Protocol):
    """One engine with workers, each of which runs one job at a time. What was given to a worker is heard of exactly once."""

    @property
    def place(self) -> str:
        """The engine's address, for people."""

    def workers(self) -> list[str]:
        """Names of the workers that are there now; others may come and go. A worker that is started anew has another name."""

    def give(self, worker: str, job: Job) -> None:
        """Run `job` on this worker. Returns at once."""

    def hear(self, seconds: float) -> list[Heard]:
        """What has been answered, and which of the workers with a job are gone; waits at most `seconds` where there is nothing."""

    def close(self) -> None:
        """Let go of the engine; what was started here ends, with all jobs."""


@dataclass(frozen=True)
class Place:
    """An executor's URL. `address`: host:port, or "" for workers on this machine; `workers`: how many, where the URL says."""

    engine: str
    address: str
    workers: int | None
    url: str


def place_of(url: str) -> Place:
    """Reads `dask://host:port`, `dask://local?workers=2`, `ray://host:port`, … Raises Stopped, which names the right form."""
    usage = "give dask://host:port, dask+tls://host:port, ray://host:port, dask://local?workers=2 or ray://local?workers=2"
    try:
        parts = urlsplit(url)
        engine, port, given = parts.scheme, parts.port, dict(parse_qsl(parts.query, strict_parsing=True) if parts.query else ())
    except ValueError as error:
        raise Stopped(f"--executor {url!r}: {error}; {usage}", usage=True) from error
    if "@" in parts.netloc:
        raise Stopped(
            f"--executor {engine}://…@{parts.hostname}: a password on a command line can be read by every user of this machine; leave it "
            "away, and configure the engine's own security (dask: distributed.comm.tls in its configuration)",
            usage=True,
        )
    unknown = [key for key in given if key != "workers"]
    if engine not in ENGINES or unknown or parts.path.strip("/") or not parts.hostname:
        raise Stopped(f"--executor {url!r}: {f'unknown setting {unknown[0]!r}; ' if unknown else ''}{usage}", usage=True)
    if not re.fullmatch(r"[1-9]\d{0,5}", given.get("workers", "1")):
        raise Stopped(f"--executor {url!r}: workers={given['workers']} is not a number from 1 on", usage=True)
    workers = int(given["workers"]) if "workers" in given else None
    if parts.hostname == "local":
        return Place(engine, "", workers, url)
    if port is None:
        raise Stopped(f"--executor {url!r}: the port is missing; {usage}", usage=True)
    if workers is not None and engine != "ray":
        raise Stopped(f"--executor {url!r}: workers=… is for dask://local and ray; a dask cluster's workers are all used", usage=True)
    return Place(engine, parts.netloc, workers, url)
