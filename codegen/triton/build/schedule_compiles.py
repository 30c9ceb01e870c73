"""Schedules compilations of kernels over threads, some of which have a worker process each."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from precast.codegen.triton.build.worker_pool import Worker, WorkerLost

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOK_SECONDS = 0.05
"""Seconds between the checks, by a thread whose worker is not ready, whether any items are left …"""
GRACE_SECONDS = 1.0
"""… and seconds after which it compiles in this process."""


def shared(
    items: Sequence[Item],
    here: Callable[[Item], Result],
    there: Callable[[Item, Worker], Result | None],
    threads: int,
    workers: Sequence[Worker] = (),
) -> list[Result]:
    """The results of `here` for all items, in order, by a number of threads; the first threads have one of `workers` each, and ask `there`
    first. At most half of the threads wait for a worker that is not ready.

    Where `there` returns None, or the worker is lost, `here` does the item; its first error is raised.
    """
    waiting = deque(range(len(items)))
    results: dict[int, Result] = {}
    count = max(1, min(threads, len(items)))
    begun: list[list[int]] = [[] for _ in range(count)]
    able = {worker: _ready(worker, 0.0) for worker in workers}
    helpers = [*(w for w in workers if able[w]), *[w for w in workers if not able[w]][: count // 2]]

    def run(worker: Worker | None, begun: list[int]) -> None:
        end = time.monotonic() + GRACE_SECONDS
        while waiting:
            if worker is not None and not _ready(worker, LOOK_SECONDS):
                worker = worker if time.monotonic() < end else None
                continue
            try:
                begun.append(waiting.popleft())
            except IndexError:
                return
            item = items[begun[-1]]
            result = None if worker is None or worker.lost else _asked(worker, item, there)
            results[begun[-1]] = here(item) if result is None else result

    def run_or_stop(worker: Worker | None, begun: list[int]) -> None:
        try:
            run(worker, begun)
        except BaseException:
            waiting.clear()
            raise

    with ThreadPoolExecutor(count) as pool:
        runs = [pool.submit(run_or_stop, worker, mine) for worker, mine in zip([*helpers, *[None] * count], begun, strict=False)]
        try:
            wait(runs)
        except BaseException:  # an interruption of this thread
            waiting.clear()
            for worker in workers:
                worker.kill()
            raise
    errors = {mine[-1]: error for done, mine in zip(runs, begun, strict=True) if (error := done.exception()) is not None}
    if errors:
        raise errors[min(errors)]  # the same in every run: what precedes it was begun before it
    return [results[number] for number in range(len(items))]


def _ready(worker: Worker, seconds: float) -> bool:
    """Whether the thread may take an item: its worker is ready, or lost, so that it compiles in this process."""
    try:
        return worker.lost or worker.ready(seconds)
    except WorkerLost as lost:
        worker.give_up(lost)
        return True


def _asked(worker: Worker, item: Item, there: Callable[[Item, Worker], Result | None]) -> Result | None:
    try:
        return there(item, worker)
    except WorkerLost as lost:
        worker.give_up(lost)
        return None
