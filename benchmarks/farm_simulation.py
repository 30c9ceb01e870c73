"""A build farm of any size by simulation: workers, a client that deals the jobs, a tier that takes the artifacts. No clock, no network."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What was measured. `compiles`: seconds, from which each job's are drawn; `client`: seconds of the client a job, one after another;
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
    """Events in the order of time: a worker asks for a job, and has compiled. The client and the tier serve in the order of asking."""
    asks, compiled = 0, 1
    events = [(costs.start, asks, number) for number in range(workers)]
    heapq.heapify(events)
    client = tier = compiling = end = 0.0
    left = jobs
    while events:
        now, what, worker = heapq.heappop(events)
        if what == compiled:
            tier = max(tier, now) + costs.size / costs.bandwidth
            end = max(end, tier)
            heapq.heappush(events, (tier, asks, worker))
        elif left:
            left -= 1
            client = max(client, now) + costs.client
            seconds = draw.choice(costs.compiles)
            compiling += seconds
            heapq.heappush(events, (client + costs.way + seconds, compiled, worker))
    return Result(end, compiling / (workers * end))
