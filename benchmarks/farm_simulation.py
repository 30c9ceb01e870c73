"""A build farm of any size by simulation: workers, one client that deals the jobs, one tier that takes the artifacts. No clock, no network."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What was measured. `compiles`: seconds, from which each job's are drawn; `client`: seconds of the client for a job, one job at a time;
    `way`: seconds between a worker's jobs beside that; `size`: bytes of an artifact; `bandwidth`: bytes a second that the tier takes in
    all; `start`: seconds until a worker is warm.
    """

    compiles: tuple[float, ...]
    client: float
    way: float
    size: float
    bandwidth: float
    start: float


@dataclass(frozen=True)
class Result:
    """`seconds`: until the last artifact is in the tier; `busy`: the part of the workers' time in which they compile."""

    seconds: float
    busy: float


def simulate(costs: Costs, jobs: int, workers: int, draw: random.Random) -> Result:
    """A worker asks for a job as soon as its artifact is sent; the client and the tier serve one after another."""
    free = [(costs.start, number) for number in range(workers)]
    heapq.heapify(free)
    client = tier = compiling = end = 0.0
    for _ in range(jobs):
        idle, worker = heapq.heappop(free)
        client = max(client, idle) + costs.client
        seconds = draw.choice(costs.compiles)
        compiled = client + costs.way + seconds
        tier = max(tier, compiled) + costs.size / costs.bandwidth if costs.size else compiled
        sent = max(compiled, tier)
        compiling, end = compiling + seconds, max(end, sent)
        heapq.heappush(free, (sent, worker))
    return Result(end, compiling / (workers * end))
