"""Threads for work with remotes: results in order, the first error, work that hands out work, and forks."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store.remote.workers import Workers
from tests.artifact_store.remote.machine import KEY, Machine, tier


def test_results_come_in_order_and_the_work_is_done_at_the_same_time() -> None:
    gate = threading.Barrier(4, timeout=10)

    def job(number: int) -> int:
        gate.wait()  # passes only where all four run at once
        return number

    assert Workers(4).run([partial(job, number) for number in range(4)]) == [0, 1, 2, 3]
    assert Workers(4).run([]) == []


def test_the_first_error_is_raised_and_what_was_not_begun_is_left_out() -> None:
    done: list[int] = []

    def job(number: int) -> None:
        if number == 0:
            raise ValueError("no")
        done.append(number)

    with pytest.raises(ValueError, match="no"):
        Workers(1).run([partial(job, number) for number in range(100)])
    assert len(done) < 100


def test_work_may_hand_out_work_with_few_threads() -> None:
    workers = Workers(1)

    def outer(number: int) -> int:
        return sum(workers.run([partial(lambda value: value, number + i) for i in range(3)]))

    assert workers.run([partial(outer, number) for number in range(5)]) == [3, 6, 9, 12, 15]


def test_an_error_of_submitted_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen = threading.Event()

    def job() -> None:
        seen.set()
        raise ValueError("no")

    Workers(1).submit(job)
    assert seen.wait(10)
    until = time.monotonic() + 5
    while "bug of precast" not in caplog.text and time.monotonic() < until:
        time.sleep(0.01)
    assert "bug of precast" in caplog.text


def test_a_forked_child_asks_by_itself(tmp_path: Path) -> None:
    shared = tier(budget=10.0)
    builder, reader = Machine(tmp_path / "builder", shared), Machine(tmp_path / "reader", shared)
    builder.put()
    assert builder.sent()
    builder.look()  # threads of the parent are there, and idle
    gate: Any = threading.Event()
    shared.workers.submit(gate.wait)  # and one of them is busy
    pid = os.fork()
    if not pid:
        reader.look()
        os._exit(0 if len(reader.store.variants(KEY)) == 1 else 1)
    gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
