"""An endpoint as everybody uses it: with retries, deadlines, a circuit breaker and counters, in threads of its own.

A `Transport` has an endpoint's verbs. Each of them runs in one of its threads, and the caller waits no longer than its deadline, whatever
the network, a resolver or a mounted filesystem does. `within(seconds)` is the same endpoint with a nearer deadline. No code of a user
runs in its threads.
"""

from __future__ import annotations

import copy
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Self, TypeVar
from weakref import WeakSet

from precast.artifact_store.remote.endpoint import Endpoint, EndpointError, Garbled, Listed, TimeOuts, Unreachable, Versioned
from precast.artifact_store.remote.endpoints.open import open_endpoint
from precast.artifact_store.remote.endpoints.url import checked, checked_prefix
from precast.artifact_store.remote.transport.breaker import FAILURES, OPEN_SECONDS, Breaker, State
from precast.artifact_store.remote.transport.counters import Counters
from precast.artifact_store.remote.transport.threads import PoolClosed, RequestThreads

T = TypeVar("T")


@dataclass(frozen=True)
class TransportSettings:
    """`tries` of a request that may be repeated; the pause after the n-th is drawn from 0 to `pause` * 2**n, at most `longest_pause`.

    `patience`: how long a caller waits that says nothing else; it is above one request's `whole`, so that a slow one still ends.
    """

    tries: int = 3
    pause: float = 0.1
    longest_pause: float = 5.0
    patience: float = 90.0
    threads: int = 8
    failures: int = FAILURES
    open_seconds: float = OPEN_SECONDS


class Unasked(Unreachable):
    """Nothing was sent: the endpoint failed just now, and the circuit breaker is open."""

    again = False


class Late(Unreachable):
    """The caller's time was over before the answer came. The request goes on in its thread."""

    again = False


class Closed(Unreachable):
    """Nothing was sent: this process closed the endpoint, or did so while the request waited for a thread."""

    again = False


_all: WeakSet[Transport] = WeakSet()


def transports() -> list[Transport]:
    """Those of this process, for `doctor` and `stats`."""
    return sorted(_all, key=lambda each: each.url)


def open_transport(url: str, timeouts: TimeOuts | None = None, settings: TransportSettings | None = None) -> Transport:
    """The endpoint of a URL, as everybody uses it. Raises ValueError for a URL that is none."""
    return Transport(open_endpoint(url, timeouts), timeouts, settings)


class Transport:
    """An endpoint with all that this module's head says. It is an `Endpoint`, too."""

    def __init__(self, endpoint: Endpoint, timeouts: TimeOuts | None = None, settings: TransportSettings | None = None) -> None:
        self._endpoint = endpoint
        self._settings = settings or TransportSettings()
        limits = timeouts or TimeOuts()
        self.counters = Counters()
        self._breaker = Breaker(endpoint.url, self._settings.failures, self._settings.open_seconds)
        self._threads = RequestThreads(self._settings.threads, limits.connect + limits.whole + limits.stall, f"precast-{endpoint.kind}")
        self._deadline: float | None = None
        _all.add(self)

    @property
    def kind(self) -> str:
        """The endpoint's."""
        return self._endpoint.kind

    @property
    def url(self) -> str:
        """The endpoint's, without credentials."""
        return self._endpoint.url

    @property
    def state(self) -> State:
        """What the circuit breaker does at the moment."""
        return self._breaker.state

    def within(self, seconds: float) -> Self:
        """The same endpoint, for callers who wait at most so long from now; raises Late then."""
        bound = copy.copy(self)
        bound._deadline = time.monotonic() + seconds
        return bound

    def get(self, name: str, limit: int) -> bytes | None:
        """As the protocol says; see there for all of these."""
        return self._wait(self.start_get(name, limit))

    def start_get(self, name: str, limit: int) -> Future[bytes | None]:
        """The same, begun; the result, or an EndpointError, comes with the future."""
        return self._start("get", checked(name), lambda: self._endpoint.get(name, limit), received=lambda found: len(found or b""))

    def get_each(self, wanted: Iterable[tuple[str, int]]) -> Iterator[tuple[str, bytes | None | EndpointError]]:
        """Several names with their limits, fetched in parallel, in the order in which they arrive. Late answers count as errors."""
        arrived: SimpleQueue[tuple[str, Future[bytes | None]]] = SimpleQueue()
        waiting = 0
        for name, limit in wanted:
            try:
                future = self.start_get(name, limit)
            except EndpointError as error:
                yield name, error
                continue
            future.add_done_callback(lambda future, name=name: arrived.put((name, future)))  # type: ignore[misc]
            waiting += 1
        deadline = self._until()
        for _ in range(waiting):
            try:
                name, future = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty as error:
                self.counters.add("late")
                raise self._late() from error
            failed = self._closed() if future.cancelled() else future.exception()
            if failed is not None and not isinstance(failed, EndpointError):
                raise failed
            yield name, failed or future.result()

    def get_versioned(self, name: str, limit: int) -> Versioned | None:
        def run() -> Versioned | None:
            return self._endpoint.get_versioned(name, limit)

        return self._do("get", checked(name), run, received=lambda found: len(found.data) if found else 0)

    def put(self, name: str, data: bytes) -> None:
        self._do("put", checked(name), lambda: self._endpoint.put(name, data), sent=len(data))

    def put_new(self, name: str, data: bytes) -> bool:
        return self._do("put_new", checked(name), self._once(name, data, lambda: self._endpoint.put_new(name, data)), sent=len(data))

    def replace(self, name: str, data: bytes, version: str) -> bool:
        verb = self._once(name, data, lambda: self._endpoint.replace(name, data, version))
        return self._do("replace", checked(name), verb, sent=len(data))

    def has(self, name: str) -> bool:
        return self._do("has", checked(name), lambda: self._endpoint.has(name))

    def remove(self, name: str) -> None:
        self._do("remove", checked(name), lambda: self._endpoint.remove(name))

    def names(self, prefix: str) -> Iterator[Listed]:
        """All of them are fetched before the first is given, so that a failure half-way is no shorter list."""
        return iter(self._do("names", checked_prefix(prefix), lambda: list(self._endpoint.names(prefix))))

    def close(self) -> None:
        self._threads.close()
        self._endpoint.close()

    def _until(self) -> float:
        return time.monotonic() + self._settings.patience if self._deadline is None else self._deadline

    def _once(self, name: str, data: bytes, verb: Callable[[], bool]) -> Callable[[], bool]:
        """A conditional put that is repeated after its answer was lost finds what it put itself: that is a yes."""
        tried = False

        def run() -> bool:
            nonlocal tried
            again, tried = tried, True
            if verb():
                return True
            if not again:
                return False
            try:
                found = self._endpoint.get(name, len(data))
            except Garbled:
                return False
            return found == data

        return run

    def _do(self, verb: str, name: str, run: Callable[[], T], sent: int = 0, received: Callable[[T], int] | None = None) -> T:
        return self._wait(self._start(verb, name, run, sent, received))

    def _start(self, verb: str, name: str, run: Callable[[], T], sent: int = 0, received: Callable[[T], int] | None = None) -> Future[T]:
        """Begin a request with its retries. Raises Unasked where the breaker is open, Closed after `close`."""
        if self._threads.overdue():
            self._breaker.failed(f"a request to {self.url} has been under way for {self._threads.longest():.0f} s")
        if not self._breaker.admit():
            self.counters.add("unasked")
            state = self.state
            until = "" if state.until is None else time.strftime(" until %H:%M:%S", time.localtime(state.until))
            raise Unasked(f"{self.url} is not asked{until}: {state.reason}")
        deadline = self._until()
        try:
            return self._threads.start(lambda: self._attempts(verb, run, sent, received, deadline))
        except PoolClosed as error:
            raise self._closed() from error

    def _wait(self, future: Future[T]) -> T:
        if future.done():
            return self._result(future)
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        if not done.wait(max(0.0, self._until() - time.monotonic())):
            self.counters.add("late")
            raise self._late()
        return self._result(future)

    def _result(self, future: Future[T]) -> T:
        try:
            return future.result()
        except CancelledError as error:
            raise self._closed() from error

    def _late(self) -> Late:
        return Late(f"{self.url} had not answered when the time for it was over; the request goes on")

    def _closed(self) -> Closed:
        return Closed(f"{self.url} is not asked: this process closed its connections to it")

    def _attempts(self, verb: str, run: Callable[[], T], sent: int, received: Callable[[T], int] | None, deadline: float) -> T:
        """A request, repeated while it may help and there is time. It runs in a thread of this transport."""
        for attempt in range(1, self._settings.tries + 1):
            begun = time.monotonic()
            try:
                result = run()
            except EndpointError as error:
                self.counters.request(verb, time.monotonic() - begun, 0, 0, type(error).__name__, str(error))
                self._failed(error)
                pause = self._pause(attempt, error, deadline)
                if pause is None:
                    raise
                self.counters.add("retries")
                time.sleep(pause)
            except BaseException as error:
                self._breaker.failed(f"{type(error).__name__} in {verb}")
                raise
            else:
                self.counters.request(verb, time.monotonic() - begun, sent, received(result) if received is not None else 0)
                self._breaker.succeeded()
                return result
        raise AssertionError("not reached: the last attempt raises")

    def _failed(self, error: EndpointError) -> None:
        """What the breaker learns from it: Denied and Unsupported are answers, of a service that is there."""
        if isinstance(error, (Unreachable, Garbled)):
            self._breaker.failed(str(error))
        else:
            self._breaker.succeeded()

    def _pause(self, attempt: int, error: EndpointError, deadline: float) -> float | None:
        """Seconds until the next attempt; None where there is to be none."""
        if not error.again or attempt >= self._settings.tries:
            self._hold(error)
            return None
        pause = random.uniform(0.0, min(self._settings.longest_pause, self._settings.pause * 2**attempt))
        pause = max(pause, getattr(error, "after", None) or 0.0)
        if time.monotonic() + pause > deadline or pause > self._settings.longest_pause:
            self._hold(error)
            return None
        return pause if self._breaker.state.name == "closed" else None

    def _hold(self, error: EndpointError) -> None:
        after: Any = getattr(error, "after", None)
        if after:
            self._breaker.hold(after, str(error))
