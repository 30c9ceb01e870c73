"""Looking on at compiles: each observer is shown what its own thread compiles, and nothing of others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.building.tune import _watching
from precast.compiling.observers import captures, lowerings

X = torch.arange(6.0)


def mine(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def other(x: torch.Tensor) -> torch.Tensor:
    return (x - 3).relu()


def in_a_thread(job: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad():
                job()
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not failed


def test_an_observer_sees_the_compiles_of_its_own_thread(store: Store) -> None:
    captured: list[str] = []
    lowered: list[tuple[str, str]] = []

    def look(program: Any, outcome: Any) -> None:
        captured.append(program.name)

    def look_lower(program: Any, target: str, options: Any, weights: tuple[str, ...]) -> None:
        lowered.append((program.name, target))

    with captures.watch(look), lowerings.watch(look_lower):
        in_a_thread(lambda: precast.compile(other, store=store)(X))
        assert not captured and not lowered
        precast.compile(mine, store=store)(X)
    precast.compile(other, store=store)(X.double())
    assert [name.rpartition(":")[2] for name in captured] == ["mine"]
    assert len(lowered) == 1


def test_two_threads_look_on_at_once(store: Store) -> None:
    seen: dict[str, list[str]] = {"mine": [], "other": []}
    both = threading.Barrier(2, timeout=60)

    def job(function: Callable[..., Any]) -> None:
        name = function.__name__
        with captures.watch(lambda program, outcome: seen[name].append(program.name.rpartition(":")[2])):
            both.wait()
            precast.compile(function, store=store)(X)
            both.wait()

    beside = threading.Thread(target=torch.no_grad()(lambda: job(other)))
    beside.start()
    job(mine)
    beside.join()
    assert seen == {"mine": ["mine"], "other": ["other"]}


def test_explain_reports_nothing_of_other_threads(store: Store) -> None:
    @precast.disable
    def beside() -> None:
        in_a_thread(lambda: precast.compile(other, store=store)(X))

    def explained(x: torch.Tensor) -> torch.Tensor:
        y = mine(x)
        beside()
        return y * 3

    report = precast.explain(explained)(X)
    torch.testing.assert_close(report.value, mine(X) * 3)
    assert report.ops == 3 and not any(frame.name.endswith(":other") for frame in report.frames)
    assert len(list(store.manifests())) == 1, "the other thread has compiled"


def test_tune_captures_nothing_of_other_threads(store: Store) -> None:
    targets: list[str] = []
    with lowerings.watch(lambda program, target, *more: targets.append(target)):
        precast.compile(mine, store=store)(X)
    with _watching(targets[0], ("job", 1)) as seen:
        in_a_thread(lambda: precast.compile(other, store=store)(X))
        assert seen == []
        precast.compile(mine, store=store)(X.double())
    assert [captured.owner for captured in seen] == [("job", 1)]


def test_observers_are_taken_off_where_the_body_raises() -> None:
    with pytest.raises(ZeroDivisionError), captures.watch(lambda program, outcome: None):
        _ = 1 // 0
    assert captures._observers.get() == ()
