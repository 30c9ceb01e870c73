"""What all remotes share: retries with pauses, deadlines, the circuit breaker, counters, threads that hold nobody, and forks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, TimeOuts, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.transport import breaker as breaker_module
from precast.artifact_store.remote.transport.breaker import Breaker
from precast.artifact_store.remote.transport.threads import PoolClosed, RequestThreads
from precast.artifact_store.remote.transport.transport import (
    Closed,
    Late,
    Transport,
    TransportSettings,
    Unasked,
    open_transport,
    transports,
)
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.support.fault_proxy import FaultProxy

FAST = TransportSettings(pause=0.001, failures=100)
NAME = "v1/programs/model-1"


def failing(errors: list[EndpointError]) -> Callable[[str, str], None]:
    """Raises these one after the other, then nothing."""

    def before(verb: str, name: str) -> None:
        if errors and verb != "close":
            raise errors.pop(0)

    return before


def made(errors: list[EndpointError] | None = None, settings: TransportSettings = FAST) -> tuple[MemoryEndpoint, Transport]:
    endpoint = MemoryEndpoint()
    endpoint.content[NAME] = (b"content", 1.0)
    endpoint.before = failing(errors if errors is not None else [])
    return endpoint, Transport(endpoint, settings=settings)


@pytest.mark.parametrize(
    ("errors", "requests", "raises"),
    [
        ([], 1, None),
        ([Unreachable("1")], 2, None),
        ([Unreachable("1"), Unreachable("2")], 3, None),
        ([Unreachable("1"), Unreachable("2"), Unreachable("3")], 3, Unreachable),
        ([Denied("no")], 1, Denied),
        ([Garbled("what")], 1, Garbled),
        ([Unsupported("no such verb")], 1, Unsupported),
        ([Unreachable("1"), Denied("no")], 2, Denied),
    ],
)
def test_only_what_may_help_is_repeated(errors: list[EndpointError], requests: int, raises: type[EndpointError] | None) -> None:
    endpoint, transport = made(list(errors))
    if raises is None:
        assert transport.get(NAME, 100) == b"content"
    else:
        with pytest.raises(raises):
            transport.get(NAME, 100)
    assert endpoint.requests["get"] == requests
    counted = transport.counters.snapshot()
    assert counted["requests"] == {"get": requests} and counted["retries"] == requests - 1
    assert sum(counted["failures"].values()) == len(errors)
    assert counted["bytes_received"] == (7 if raises is None else 0)


def test_pauses_are_drawn_and_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[float, float]] = []
    slept: list[float] = []

    def uniform(low: float, high: float) -> float:
        drawn.append((low, high))
        return high / 2

    monkeypatch.setattr("precast.artifact_store.remote.transport.transport.random.uniform", uniform)
    monkeypatch.setattr("precast.artifact_store.remote.transport.transport.time.sleep", slept.append)
    _, transport = made(
        [Unreachable(str(number)) for number in range(7)], TransportSettings(tries=7, pause=0.1, longest_pause=2.0, failures=99)
    )
    with pytest.raises(Unreachable):
        transport.get(NAME, 100)
    assert drawn == [(0.0, min(2.0, 0.1 * 2**number)) for number in range(1, 7)] and slept == [high / 2 for _, high in drawn]


def test_retry_after_is_honoured() -> None:
    endpoint, transport = made([Unreachable("later", after=0.2)])
    began = time.monotonic()
    assert transport.get(NAME, 100) == b"content"
    assert time.monotonic() - began >= 0.2
    endpoint, transport = made([Unreachable("much later", after=30.0)])
    began = time.monotonic()
    with pytest.raises(Unreachable, match="much later"):
        transport.get(NAME, 100)
    with pytest.raises(Unasked, match="is not asked until ..:..:..: much later"):
        transport.get(NAME, 100)
    assert time.monotonic() - began < 1 and endpoint.requests["get"] == 1
    assert transport.state.name == "open" and 25 < (transport.state.until or 0) - time.time() <= 30


def test_retry_after_over_http() -> None:
    with FaultProxy() as proxy:
        transport = open_transport(proxy.url, settings=FAST)
        transport.put(NAME, b"1")
        proxy.fault("status", status=429, retry_after="1", times=1)
        began = time.monotonic()
        assert transport.get(NAME, 1) == b"1"
        assert time.monotonic() - began >= 1.0 and proxy.requests["GET"] == 2
        transport.close()


@pytest.mark.parametrize("verb", ["put_new", "replace"])
@pytest.mark.parametrize(("kept", "wanted"), [(b"mine", True), (b"theirs", False)])
def test_a_conditional_put_whose_answer_was_lost(verb: str, kept: bytes, wanted: bool) -> None:
    """The first try took effect, for us or for another, and the connection broke: the second one says whose it is."""

    class Losing(MemoryEndpoint):
        lost = 0

        def put_new(self, name: str, data: bytes) -> bool:
            self.content.setdefault(name, (kept, 1.0))
            self.lost += 1
            if self.lost == 1:
                raise Unreachable("broke off")
            return False

        def replace(self, name: str, data: bytes, version: str) -> bool:
            return self.put_new(name, data)

    endpoint = Losing()
    transport = Transport(endpoint, settings=FAST)
    assert (transport.put_new(NAME, b"mine") if verb == "put_new" else transport.replace(NAME, b"mine", "v")) is wanted
    assert endpoint.lost == 2


def test_a_caller_waits_no_longer_than_it_wants() -> None:
    endpoint, transport = made()
    landed = threading.Event()
    release = threading.Event()

    def slow(verb: str, name: str) -> None:
        release.wait(10)
        landed.set()

    endpoint.before = slow
    began = time.monotonic()
    with pytest.raises(Late, match="had not answered when the time for it was over; the request goes on"):
        transport.within(0.1).get(NAME, 100)
    assert 0.1 <= time.monotonic() - began < 1.0
    assert transport.counters.late == 1
    release.set()
    assert landed.wait(5), "the request goes on"
    endpoint.before = failing([])
    assert transport.within(5).get(NAME, 100) == b"content"


def test_no_retry_begins_that_cannot_end_in_time() -> None:
    endpoint, transport = made([Unreachable("later", after=0.5)] * 3)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="later"):
        transport.within(0.3).get(NAME, 100)
    assert time.monotonic() - began < 0.25 and endpoint.requests["get"] == 1


def test_several_are_fetched_in_parallel() -> None:
    endpoint, transport = made()
    names = [f"v1/usage/machine-{number}" for number in range(24)]
    for name in names[1:]:
        endpoint.content[name] = (name.encode(), 1.0)
    endpoint.before = lambda verb, name: time.sleep(0.1)
    began = time.monotonic()
    found = dict(transport.get_each([*((name, 100) for name in names), ("../x", 1), (NAME, 3)]))
    assert time.monotonic() - began < 1.5  # 25 of them, 8 at a time: 0.4 s
    assert found[names[0]] is None and all(found[name] == name.encode() for name in names[1:])
    assert isinstance(found["../x"], Garbled) and isinstance(found[NAME], Garbled)
    endpoint.before = lambda verb, name: time.sleep(0.5)
    with pytest.raises(Late):
        list(transport.within(0.1).get_each((name, 100) for name in names))


def test_the_breaker_opens_looks_again_and_closes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]
    monkeypatch.setattr(breaker_module.time, "monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, "precast.store")
    breaker = Breaker("s3://bucket", failures=3, open_seconds=15.0)
    for _ in range(2):
        assert breaker.admit()
        breaker.failed("no answer")
    breaker.succeeded()  # in a row is meant
    for _ in range(3):
        assert breaker.state.name == "closed" and breaker.admit()
        breaker.failed("no answer")
    assert breaker.state.name == "open" and str(breaker.state).endswith("no answer") and not breaker.admit()
    now[0] += 14.9
    assert not breaker.admit()
    now[0] += 0.2
    assert breaker.state.name == "half-open"
    assert breaker.admit() and not breaker.admit(), "one looks again"
    breaker.failed("still no answer")
    now[0] += 29.9
    assert not breaker.admit()
    now[0] += 0.2
    assert breaker.admit()
    breaker.succeeded()
    assert str(breaker.state) == "closed" and breaker.admit() and breaker.admit()
    assert [record.getMessage() for record in caplog.records] == [
        "s3://bucket is not asked for 15 s, and what it has counts as absent: no answer",
        "s3://bucket is not asked for 30 s, and what it has counts as absent: still no answer",
        "s3://bucket answers again",
    ]
    for _ in range(20):  # it looks again every 5 minutes in the end
        now[0] += 400
        if breaker.admit():
            breaker.failed("no answer")
    now[0] += 300.1
    assert breaker.admit()
    now[0] += breaker_module.PROBE_SECONDS + 1
    assert breaker.admit(), "the one that was to look never came back"


def test_a_dead_endpoint_costs_nothing_after_a_while() -> None:
    endpoint, transport = made(settings=TransportSettings(pause=0.001))
    endpoint.before = failing([Unreachable("refused") for _ in range(1000)])
    with pytest.raises(Unreachable):
        transport.get(NAME, 100)
    began = time.perf_counter()
    for _ in range(1000):
        with pytest.raises(Unasked, match="refused"):
            transport.get(NAME, 100)
    assert time.perf_counter() - began < 1.0
    assert endpoint.requests["get"] == 3 and transport.counters.unasked == 1000
    assert transport in transports()


@pytest.mark.parametrize("error", [Denied("no"), Unsupported("no such verb")])
def test_a_refusal_is_an_answer(error: EndpointError) -> None:
    _, transport = made([error] * 10, TransportSettings(failures=2))
    for _ in range(10):
        with pytest.raises(type(error)):
            transport.get(NAME, 100)
    assert transport.state.name == "closed"


def test_requests_that_never_end_open_the_breaker_and_take_no_thread_from_others() -> None:
    endpoint = MemoryEndpoint()
    never = threading.Event()
    stuck = [4]

    def hang(verb: str, name: str) -> None:
        if stuck[0]:
            stuck[0] -= 1
            never.wait(20)

    endpoint.before = hang
    limits = TimeOuts(connect=0.01, stall=0.01, whole=0.05)
    transport = Transport(endpoint, limits, TransportSettings(threads=4, failures=3))
    for _ in range(4):
        with pytest.raises(Late):
            transport.within(0.02).get(NAME, 1)
    time.sleep(0.1)
    assert transport.get(NAME, 1) is None, "all four threads are stuck, and another one answers"
    never.set()
    stuck[0] = 100
    never.clear()
    for _ in range(3):
        with pytest.raises((Late, Unasked)):
            transport.within(0.1).get(NAME, 1)
    with pytest.raises(Unasked, match="has been under way for"):
        for _ in range(4):
            transport.within(0.01).get(NAME, 1)
    never.set()


def test_threads_end_when_idle_and_tasks_may_start_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.transport.threads.IDLE_SECONDS", 0.05)
    threads = RequestThreads(2, 60.0, "precast-test")
    assert [threads.start(lambda number=number: threads.start(lambda: number).result()).result(5) for number in range(10)] == list(
        range(10)
    )

    def alive() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name.startswith("precast-test")]

    assert alive()
    deadline = time.monotonic() + 5
    while alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive()
    assert threads.start(lambda: 5).result(5) == 5
    threads.close()
    with pytest.raises(PoolClosed, match="precast-test were closed"):
        threads.start(lambda: 5)


def test_requests_at_an_endpoint_that_was_closed_say_so() -> None:
    endpoint, transport = made(settings=TransportSettings(threads=1))
    hangs, go_on = threading.Event(), threading.Event()

    def hang(verb: str, name: str) -> None:
        if verb == "has":
            hangs.set()
            go_on.wait(20)

    endpoint.before = hang
    answers: list[object] = []

    def ask(request: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                answers.append(request())
            except EndpointError as error:
                answers.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    under_way = ask(lambda: transport.has(NAME))
    assert hangs.wait(20)
    waiting = [ask(lambda: transport.get(NAME, 100)), ask(lambda: list(transport.get_each([(NAME, 100)]))[0][1])]
    until = time.monotonic() + 20
    while len(transport._threads._tasks) < 2 and time.monotonic() < until:
        time.sleep(0.01)
    transport.close()
    for thread in waiting:
        thread.join(20)
    assert [type(each) for each in answers] == [Closed, Closed], "what waits for a thread is told at once"
    go_on.set()
    under_way.join(20)
    assert answers[2:] == [True], "what is under way ends"
    with pytest.raises(Closed, match="memory://test is not asked: this process closed"):
        transport.get(NAME, 100)
    assert [type(each) for _, each in transport.get_each([(NAME, 100)])] == [Closed]
    assert transport.state.name == "closed", "the breaker learns nothing from it"


def test_an_error_of_ours_reaches_the_caller() -> None:
    endpoint, transport = made()

    def broken(name: str, limit: int) -> Versioned | None:
        raise KeyError("a bug")

    endpoint.get_versioned = broken  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="a bug"):
        transport.get(NAME, 100)


HANGS_AT_EXIT = """
import sys, time
from precast.artifact_store.remote.endpoint import TimeOuts
from precast.artifact_store.remote.transport.transport import Late, open_transport
transport = open_transport(sys.argv[1], TimeOuts(stall=30.0))
try:
    transport.within(0.2).get("v1/x", 10)
except Late:
    print("late", flush=True)
"""


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_hanging_request_does_not_hold_the_interpreter(scheme: str) -> None:
    with FaultProxy() as proxy:
        proxy.fault("hang")
        url = proxy.url if scheme == "http" else f"s3://b?endpoint={proxy.url}&region=x"
        began = time.monotonic()
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        done = subprocess.run([sys.executable, "-c", HANGS_AT_EXIT, url], env=environment, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0 and done.stdout == "late\n" and not done.stderr, done.stderr
        assert time.monotonic() - began < 10


def test_a_child_begins_its_own_threads() -> None:
    """Forked in the middle of requests, with every lock in use."""
    with FaultProxy() as proxy:
        transport = open_transport(f"{proxy.url}/x", settings=FAST)
        transport.put(NAME, b"content")
        stop = threading.Event()

        def busy() -> None:
            while not stop.is_set():
                transport.get(NAME, 100)

        workers = [threading.Thread(target=busy) for _ in range(4)]
        for worker in workers:
            worker.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        code = 0 if transport.within(5).get(NAME, 100) == b"content" and transport.counters.snapshot() else 2
                    finally:
                        os._exit(code)
                assert _exit_code(child) == 0
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        transport.close()


def _exit_code(child: int) -> int | str:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return "it hung"


WITHOUT = """
import sys, precast.artifact_store.store
heads = "precast.artifact_store.remote.endpoints", "precast.artifact_store.remote.transport", "obstore"
print([name for name in sys.modules if name.startswith(heads)])
"""


def test_without_a_remote_nothing_of_this_is_imported() -> None:
    assert subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_each_scheme_imports_what_it_needs_only() -> None:
    code = """
import sys
from precast.artifact_store.remote.endpoints.open import open_endpoint
open_endpoint("shared:///tmp")
print(sorted({name.partition(".")[0] for name in sys.modules} & {"obstore", "ssl", "http", "redis", "torch", "zstandard"}))
open_endpoint("http://127.0.0.1:1"), open_endpoint("redis://127.0.0.1:1")
print(sorted({name.partition(".")[0] for name in sys.modules} & {"obstore", "redis", "torch", "requests", "urllib3"}))
"""
    environment: dict[str, Any] = {**os.environ, "NETRC": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n[]\n", done.stderr
