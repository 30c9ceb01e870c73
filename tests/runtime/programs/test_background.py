"""options={"background_compile": True}: calls run eagerly until the background thread has finished; errors are reported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.compiling import driver
from precast.runtime.api.compile import site_of
from precast.runtime.common import background

OPTIONS = {"background_compile": True}


class Gate:
    """Holds the part of a compile that runs in the background until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.threads: list[str] = []
        real = driver.build_graphs

        def held(*args: Any) -> Any:
            self.threads.append(threading.current_thread().name)
            self.reached.set()
            assert self.opened.wait(60)
            return real(*args)

        monkeypatch.setattr(driver, "build_graphs", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()
    assert background.wait(60)


def eager_calls() -> tuple[Any, list[int]]:
    """A function, and a list that grows when its Python code really runs."""
    runs: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            runs.append(1)
        return torch.relu(x) * 3

    return function, runs


def test_eager_meanwhile_and_the_variant_when_it_is_ready(gate: Gate, store: Store) -> None:
    function, runs = eager_calls()
    compiled = precast.compile(function, options=OPTIONS, store=store, dynamic=False)
    for expected in range(1, 5):  # interpreted, generated and native checks: none may keep a call eager for good
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x), torch.relu(x) * 3)
        assert len(runs) == expected
    assert gate.reached.wait(60)
    other = torch.randn(7)  # another shape while the compiler is busy: eager, and not waited for
    torch.testing.assert_close(compiled(other), torch.relu(other) * 3)
    eager = len(runs)
    gate.opened.set()
    assert background.wait(60)
    for _ in range(4):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x), torch.relu(x) * 3)
    assert len(runs) == eager, "compiled from now on"
    assert gate.threads == ["precast-background-compile"]
    (program,) = site_of(compiled).programs
    assert [variant.stored for variant in program.variants] == [True]
    compiled(other)
    assert background.wait(60)
    compiled(other)
    assert len(program.variants) == 2 and len(gate.threads) == 2


def test_threads_compile_it_once(gate: Gate, store: Store) -> None:
    function, _ = eager_calls()
    compiled = precast.compile(function, options=OPTIONS, store=store, dynamic=False)
    problems: list[BaseException] = []

    def work() -> None:
        try:
            with torch.no_grad():
                for _ in range(50):
                    x = torch.randn(4)
                    torch.testing.assert_close(compiled(x), torch.relu(x) * 3)
        except BaseException as error:  # noqa: BLE001 - carried over to the test's own thread
            problems.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    assert gate.reached.wait(60)
    gate.opened.set()
    for thread in threads:
        thread.join(60)
    assert background.wait(60) and not problems
    assert len(gate.threads) == 1


def test_an_error_in_the_background_is_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise ValueError("the compiler fell over")

    monkeypatch.setattr(driver, "build_graphs", broken)
    function, runs = eager_calls()
    compiled = precast.compile(function, options=OPTIONS, store=store)
    x = torch.randn(4)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        compiled(x)
        assert background.wait(60)
    assert any("the compiler fell over" in str(w.message) for w in found)
    torch.testing.assert_close(compiled(x), torch.relu(x) * 3)
    assert len(runs) == 2


@pytest.mark.parametrize("error", [UserWarning, SystemExit])
def test_what_a_job_raises_stops_no_other(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    def run() -> None:
        raise error("of a job")

    ran: list[int] = []
    for job in (run, lambda: ran.append(1)):
        background.submit(background.Job(job, lambda: None))
    assert background.wait(10) and ran == [1]
    assert "a compile in the background ended in an error" in caplog.text and "of a job" in caplog.text


def test_calls_are_eager_no_longer_than_it_compiles_whatever_follows(store: Store) -> None:
    """What is told that the compile has ended raises: the variant serves all the same."""
    function, runs = eager_calls()
    compiled = precast.compile(function, options=OPTIONS, store=store)
    (program,) = site_of(compiled).programs
    program.hooks = replace(program.hooks, on_compile=lambda: lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    x = torch.randn(4)
    compiled(x)
    assert background.wait(60)
    (variant,) = program.variants
    assert variant.stored and not variant.pending


def test_what_is_stored_serves_an_ordinary_program(store: Store) -> None:
    function, runs = eager_calls()
    x = torch.randn(4)
    precast.compile(function, options=OPTIONS, store=store)(x)
    assert background.wait(60)
    torch.testing.assert_close(precast.load(function, store=store)(x), torch.relu(x) * 3)
    assert len(runs) == 1


def test_reset_while_it_compiles_and_a_forked_child(gate: Gate, store: Store) -> None:
    function, runs = eager_calls()
    compiled = precast.compile(function, options=OPTIONS, store=store)
    x = torch.randn(4)
    compiled(x)
    assert gate.reached.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if not site_of(compiled).programs[0].variants and background.wait(1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has no background thread and waits for none"
    site_of(compiled).reset()
    gate.opened.set()
    assert background.wait(60)
    torch.testing.assert_close(compiled(x), torch.relu(x) * 3)  # found in the store
    assert len(runs) == 1 and len(gate.threads) == 1


def test_precompile_waits(store: Store) -> None:
    report = precast.precompile(eager_calls()[0], [((torch.randn(4),), {})], options=OPTIONS, store=store)
    assert report.ok and [item.outcome for item in report.signatures] == ["compiled"]


IMPORTS = """
import sys, threading
import torch, precast
from precast.runtime.common import background

class Watch:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name == "precast-background-compile":
            late.append(name)

late = []
sys.meta_path.insert(0, Watch())

def function(x, w):
    y = torch.nn.functional.conv2d(x, w).relu()
    return y.mean((2, 3)).softmax(-1), y.cumsum(1), torch.cat([y, y], 1).transpose(1, 2) @ y.new_ones(5, 3)

for dynamic in (False, True):
    compiled = precast.compile(function, options={"background_compile": True}, dynamic=dynamic)
    with torch.no_grad():
        compiled(torch.randn(2, 3, 7, 7), torch.randn(4, 3, 3, 3))
        assert background.wait(120)
print(late)
"""


def test_nothing_is_imported_in_the_background(tmp_path: Path) -> None:
    """A child that is forked in the middle of an import waits for ever for the module that the thread was importing."""
    environment = {**os.environ, "PRECAST_STORE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", IMPORTS], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stdout + done.stderr
