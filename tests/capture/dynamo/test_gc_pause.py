"""The garbage collector works less while programs are traced, and as before afterwards."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.capture import CaptureOptions, capture
from precast.capture.gc_pause import FEW, NEVER, SELDOM, seldom_collected


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_thresholds_are_as_before(thresholds: None) -> None:
    gc.set_threshold(700, 11, 12)
    with pytest.raises(ValueError), seldom_collected():
        assert gc.get_threshold() == (SELDOM, 11, NEVER)
        with seldom_collected():
            pass
        assert gc.get_threshold()[0] == SELDOM
        raise ValueError
    assert gc.get_threshold() == (700, 11, 12)


def test_the_next_full_collection_is_not_brought_forward() -> None:
    gc.set_threshold(700, 10, 10)
    with seldom_collected():
        for _ in range(20):
            gc.collect(1)
    assert gc.get_count()[2] <= 1 and gc.get_freeze_count() < FEW


def test_what_is_frozen_stays_so() -> None:
    gc.freeze()
    try:
        with seldom_collected():
            pass
        assert gc.get_freeze_count() > FEW
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("asked", [0, 2 * SELDOM])
def test_what_the_user_chose_holds(asked: int) -> None:
    gc.set_threshold(asked)
    with seldom_collected():
        assert gc.get_threshold()[0] == asked
    assert gc.get_threshold()[0] == asked


@pytest.mark.parametrize("asked", [(50, 5, 5), (0, 10, 10), (2 * SELDOM, 10, 10)])
def test_what_the_user_chooses_meanwhile_holds(asked: tuple[int, int, int]) -> None:
    """Another thread, or code that the trace runs."""
    gc.set_threshold(700, 11, 12)
    with seldom_collected():
        with seldom_collected():
            gc.set_threshold(*asked)
        assert gc.get_threshold() == asked
        with seldom_collected():  # the next of two compiles at once
            assert gc.get_threshold()[0] == (SELDOM if 0 < asked[0] < SELDOM else asked[0])
    assert gc.get_threshold() == asked
    with seldom_collected():
        pass
    assert gc.get_threshold() == asked


def test_threads_that_end_in_any_order() -> None:
    gc.set_threshold(700)
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with seldom_collected():
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=other)
    with seldom_collected():
        thread.start()
        assert begun.wait(10)
    assert gc.get_threshold()[0] == SELDOM
    end.set()
    thread.join()
    assert gc.get_threshold()[0] == 700


def test_a_forked_child_collects_as_before() -> None:
    """The thread that traces is not there."""
    gc.set_threshold(700)
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with seldom_collected():
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    assert begun.wait(10)
    child = os.fork()
    if child == 0:
        found = [gc.get_threshold()[0]]
        with seldom_collected():
            found.append(gc.get_threshold()[0])
        os._exit(0 if [*found, gc.get_threshold()[0]] == [700, SELDOM, 700] else 1)
    end.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gc.get_threshold()[0] == 700


def test_a_fork_inside(thresholds: None) -> None:
    gc.set_threshold(700)
    with seldom_collected():
        child = os.fork()
    if child == 0:
        os._exit(0 if gc.get_threshold()[0] == 700 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_capture_is_traced_so() -> None:
    seen: list[int] = []

    def looks(graph: torch.fx.GraphModule) -> None:
        seen.append(gc.get_threshold()[0])

    gc.set_threshold(700)
    capture(lambda x: x + 1, (torch.randn(2),), {}, options=CaptureOptions({}, trace=looks))
    assert seen == [SELDOM] and gc.get_threshold()[0] == 700


def test_what_follows_the_capture_is_compiled_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.compiling import driver

    seen: list[tuple[int, ...]] = []
    build = driver.build_graphs

    def looks(*args: Any) -> Any:
        seen.append(gc.get_threshold())
        return build(*args)

    monkeypatch.setattr(driver, "build_graphs", looks)
    gc.set_threshold(700, 10, 10)
    precast.compile(lambda x: x + 1, store=str(tmp_path))(torch.randn(4))
    assert seen == [(SELDOM, 10, NEVER)] and gc.get_threshold() == (700, 10, 10)
