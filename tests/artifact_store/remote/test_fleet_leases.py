"""Leases on a remote: one of several machines works, the others wait; the dead are succeeded; a remote that fails is in nobody's way."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from precast.artifact_store import Store
from precast.artifact_store.format.msgpack import pack
from precast.artifact_store.local.leases import Lease, pauses
from precast.artifact_store.remote import fleet_watch
from precast.artifact_store.remote import leases as remote_leases
from precast.artifact_store.remote.endpoint import EndpointError, Garbled, Unreachable, Unsupported
from precast.artifact_store.remote.fleet_watch import FleetWatch
from precast.artifact_store.remote.leases import FOLDER, LIMIT, Holder, RemoteLease, holder_of
from tests.artifact_store.remote.fleet import PlainFleet, attached
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint

NAME, KEY = "ab" * 32, "model-0123abcd"
ELSEWHERE: dict[str, str | int] = {"pid": 1, "place": "another machine", "started": "", "host": "elsewhere"}


@pytest.fixture
def endpoint() -> MemoryEndpoint:
    return MemoryEndpoint()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every thread of a lease ends by itself."""
    fleet_watch._told.clear()
    yield
    assert fleet_watch.wait_until_released(20)


def machine(folder: Path, endpoint: MemoryEndpoint) -> tuple[Store, PlainFleet]:
    """A store of its own, and its remotes."""
    store = Store.open(folder)
    store.check_writable()
    return store, attached(store, endpoint)


def watch_of(store: Store, fleet: PlainFleet, expiry: float = 20.0) -> FleetWatch:
    return FleetWatch(store.root / "leases" / NAME, fleet, KEY, expiry)


def taken(watch: FleetWatch, within: float = 20.0) -> Lease:
    """Waits for the lease as a turn does."""
    for rest in pauses():
        lease = watch.look()
        if lease is not None:
            return lease
        assert watch.waited < within
        time.sleep(rest)
    raise AssertionError


def until(holds: Callable[[], object], within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(endpoint: MemoryEndpoint) -> str:
    """What the lease on the remote says; empty where it is free."""
    found = endpoint.content.get(FOLDER + NAME)
    holder = holder_of(found[0], NAME) if found is not None else None
    return holder.state if holder is not None else ""


# -- requests, one by one


def test_one_has_it_until_it_lets_go(endpoint: MemoryEndpoint) -> None:
    one, other = RemoteLease(endpoint, NAME), RemoteLease(endpoint, NAME)
    assert one.attempt() and not other.attempt()
    assert other.who == f"process {os.getpid()} on {os.uname().nodename}" and other.released == 0
    assert one.beat() and not other.beat()
    other.release()
    assert state(endpoint) == "held"  # it was not the other's
    one.release()
    assert not endpoint.content and other.attempt() and other.released == 1


def test_of_many_at_once_one_has_it(endpoint: MemoryEndpoint) -> None:
    for content in (None, Holder("dead", "", process=ELSEWHERE).to_bytes(), b"rubbish"):
        endpoint.content.clear()
        waiters = [RemoteLease(endpoint, NAME, expiry=0.1) for _ in range(8)]
        if content is not None:
            endpoint.content[FOLDER + NAME] = (content, 0.0)
            assert not any(waiter.attempt() for waiter in waiters)
            time.sleep(0.15)
        with ThreadPoolExecutor(len(waiters)) as pool:
            outcomes = list(pool.map(RemoteLease.attempt, waiters))
        got = [waiter for waiter, outcome in zip(waiters, outcomes, strict=True) if outcome]
        assert len(got) == 1 and all(waiter.beat() is (waiter is got[0]) for waiter in waiters), content


def test_expiry_is_by_the_waiters_clock_and_only_standing_still_counts(endpoint: MemoryEndpoint) -> None:
    holder, waiter = RemoteLease(endpoint, NAME), RemoteLease(endpoint, NAME, expiry=0.4)
    holder._mine = Holder("a", "", process=ELSEWHERE)
    assert holder.attempt()
    begin = time.monotonic()
    while time.monotonic() - begin < 1.0:
        assert holder.beat() and not waiter.attempt()
        time.sleep(0.05)
    endpoint.content = {name: (data, 9e9) for name, (data, _) in endpoint.content.items()}  # the service's clock is years ahead
    begin = time.monotonic()
    while not waiter.attempt():
        time.sleep(0.02)
    assert 0.2 < time.monotonic() - begin < 5 and waiter.released == 0  # taken over, not let go
    assert not holder.beat()
    holder.release()
    assert waiter.beat()


def test_a_process_of_this_machine_that_is_gone_is_succeeded_at_once(endpoint: MemoryEndpoint) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    holder, waiter = RemoteLease(endpoint, NAME), RemoteLease(endpoint, NAME)
    holder._mine = Holder("a", "", process={**holder._mine.process, "pid": gone.pid})
    assert holder.attempt() and waiter.attempt() and waiter.holder == "a" and waiter.released == 0


def test_who_waits_longer_tells_a_successor_from_one_who_let_go(endpoint: MemoryEndpoint) -> None:
    waiter = RemoteLease(endpoint, NAME)
    for token, after, released in (("a", "", 0), ("b", "a", 0), ("c", "", 1), ("d", "c", 1)):
        endpoint.put(FOLDER + NAME, Holder(token, "", after, process=ELSEWHERE).to_bytes())
        assert not waiter.attempt() and waiter.released == released, token
    endpoint.remove(FOLDER + NAME)
    assert waiter.attempt() and waiter.released == 2


def test_a_released_lease_is_left_alone_unless_it_stays(endpoint: MemoryEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer takes it out: whoever took it over in between would lose it by that."""
    monkeypatch.setattr(remote_leases, "TOMBSTONE", 0.2)
    holder, waiter = RemoteLease(endpoint, NAME), RemoteLease(endpoint, NAME)
    assert holder.attempt() and not waiter.attempt()
    monkeypatch.setattr(endpoint, "remove", lambda name: None)  # it died in between
    holder.release()
    assert state(endpoint) == "released" and not waiter.attempt()
    time.sleep(0.25)
    assert waiter.attempt() and waiter.released == 1 and state(endpoint) == "held"


def test_what_is_being_sent_is_in_the_senders_store_already(endpoint: MemoryEndpoint) -> None:
    """So a process that shares that store does not wait for the sending, and others do."""
    holder = RemoteLease(endpoint, NAME, "one store")
    same, other = RemoteLease(endpoint, NAME, "one store"), RemoteLease(endpoint, NAME, "another")
    assert holder.attempt() and holder.beat("sending") and not other.attempt() and same.attempt()
    assert same.released == 1 and not holder.beat("sending")


@pytest.mark.parametrize("verb", ["put_new", "replace"])
def test_a_request_that_succeeded_and_whose_answer_was_lost(verb: str, endpoint: MemoryEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """What repeats the request is then told that somebody was faster: that was we."""
    once = getattr(endpoint, verb)
    monkeypatch.setattr(endpoint, verb, lambda *given: (once(*given), once(*given))[1])
    lease = RemoteLease(endpoint, NAME)
    assert lease.attempt() and lease.beat() and lease.beat("sending")
    assert not RemoteLease(endpoint, NAME).attempt()


def test_a_lease_that_the_remote_lost_is_made_again(endpoint: MemoryEndpoint) -> None:
    lease, other = RemoteLease(endpoint, NAME), RemoteLease(endpoint, NAME)
    assert lease.attempt()
    endpoint.content.clear()
    assert lease.beat() and state(endpoint) == "held"
    endpoint.content.clear()
    assert other.attempt() and not lease.beat()


GOOD: dict[str, object] = {"token": "t", "store": "", "after": "", "beats": 1, "state": "held", **ELSEWHERE}


@pytest.mark.parametrize(
    ("data", "readable"),
    [
        (pack(GOOD), True),
        (b"", False),
        (b"\xc1", False),
        (pack([1, 2]), False),
        *((pack({key: value for key, value in GOOD.items() if key != left_out}), False) for left_out in GOOD),
        (pack({**GOOD, "token": 1}), False),
        (pack({**GOOD, "token": "t" * 1000}), False),
        (pack({**GOOD, "state": "unheard of"}), False),
        (pack({**GOOD, "pid": "1"}), False),
        (pack({**GOOD, "more": "fields"}), True),
    ],
)
def test_what_a_lease_may_hold(data: bytes, readable: bool, endpoint: MemoryEndpoint) -> None:
    """What cannot be read is somebody's lease, and expires."""
    assert (holder_of(data, NAME) is not None) is readable
    endpoint.put(FOLDER + NAME, data)
    waiter = RemoteLease(endpoint, NAME, expiry=0.1)
    assert not waiter.attempt()
    time.sleep(0.12)
    assert waiter.attempt()


def test_a_host_that_another_wrote_is_shown_where_it_can_be() -> None:
    for host, shown in (
        ("build-7", "build-7"),
        ("a\nb\x1b[31m", "another machine"),
        ("", "another machine"),
        ("h" * 90, "another machine"),
    ):
        assert str(Holder("t", "", process={**ELSEWHERE, "host": host})) == f"process 1 on {shown}"


def test_a_lease_of_many_bytes_is_not_read(endpoint: MemoryEndpoint) -> None:
    endpoint.put(FOLDER + NAME, bytes(LIMIT + 1))
    with pytest.raises(Garbled):
        RemoteLease(endpoint, NAME).attempt()


# -- machines


def test_without_remotes_the_leases_are_this_machines(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    assert type(store.watch(NAME, KEY)).__name__ == "Watch"
    machine(tmp_path / "s", MemoryEndpoint())
    assert type(store.watch(NAME, KEY)).__name__ == "Watch"


def test_two_machines_take_turns(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    one, other = machine(tmp_path / "a", endpoint)[0], machine(tmp_path / "b", endpoint)[0]
    order: list[str] = []

    def second() -> None:
        with other.lease(NAME, program_key=KEY) as lease:
            order.append("second")
            assert lease.held and lease.waited > 0.2

    with one.lease(NAME, program_key=KEY) as lease:
        assert lease.held and state(endpoint) == "held" and (one.root / "leases" / NAME).exists()
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    until(lambda: not endpoint.content)
    assert not any((store.root / "leases" / NAME).exists() for store in (one, other))


def test_a_machine_has_one_waiter(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    store, fleet = machine(tmp_path / "a", endpoint)
    assert RemoteLease(endpoint, NAME).attempt()
    endpoint.requests.clear()
    watches = [watch_of(store, fleet) for _ in range(6)]
    for _ in range(20):
        assert not any(watch.look() for watch in watches)
        time.sleep(0.02)
    assert endpoint.requests["put_new"] == 1 and sum(watch._claim is not None for watch in watches) == 1
    for watch in watches:
        watch.leave()


def test_what_another_machine_publishes_comes_before_the_lease(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    """Fetched at every look, and once more after the lease was taken: it may have been published just before."""
    store, fleet = machine(tmp_path / "a", endpoint)
    asked: list[str] = []
    fleet.on_refresh = lambda key: asked.append(f"{key} {state(endpoint)}")
    other = RemoteLease(endpoint, NAME)
    assert other.attempt()
    watch = watch_of(store, fleet)
    until(lambda: watch.look() is None and len(asked) >= 2)
    other.release()
    lease = taken(watch)
    assert asked[0] == asked[1] == asked[-1] == f"{KEY} held" and watch.released == 1 and watch.holder == other._mine.token
    lease.release()


def test_a_lease_is_kept_while_what_is_new_is_fetched(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    """Which may take longer than a lease lasts: others would take it over before the work has begun."""
    store, fleet = machine(tmp_path / "a", endpoint)
    goes_on = threading.Event()
    fleet.on_refresh = lambda key: goes_on.wait(30) and None
    watch = watch_of(store, fleet, expiry=0.4)
    assert watch.look() is None
    until(lambda: state(endpoint) == "held")
    first = endpoint.content[FOLDER + NAME][0]
    until(lambda: endpoint.content[FOLDER + NAME][0] != first)
    assert watch.look() is None
    goes_on.set()
    taken(watch).release()


def test_it_is_let_go_when_the_result_has_arrived(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    store, fleet = machine(tmp_path / "a", endpoint)
    fleet.sent.clear()
    begin = time.monotonic()
    with store.lease(NAME, program_key=KEY):
        pass
    assert time.monotonic() - begin < 2 and not (store.root / "leases" / NAME).exists()  # the caller does not wait for that
    until(lambda: state(endpoint) == "sending")
    with store.lease(NAME, program_key=KEY) as lease:  # nor does the next call of this machine
        assert lease.held and state(endpoint) == "held"
    until(lambda: state(endpoint) == "sending")
    fleet.sent.set()
    until(lambda: not endpoint.content)


def test_a_holder_keeps_beating_and_ends_when_another_took_over(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    store, fleet = machine(tmp_path / "a", endpoint)
    lease = taken(watch_of(store, fleet, expiry=0.4))
    first = endpoint.content[FOLDER + NAME][0]
    until(lambda: endpoint.content[FOLDER + NAME][0] != first)
    another = Holder("another", "", process=ELSEWHERE).to_bytes()
    endpoint.put(FOLDER + NAME, another)
    lease.release()
    assert fleet_watch.wait_until_released(20) and endpoint.content[FOLDER + NAME][0] == another


def test_a_call_that_never_comes_back_lets_go(tmp_path: Path, endpoint: MemoryEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "ABANDONED", 0.2)
    store, fleet = machine(tmp_path / "a", endpoint)
    watch = watch_of(store, fleet, expiry=0.4)
    assert watch.look() is None
    until(lambda: state(endpoint) == "held")
    until(lambda: not endpoint.content and not (store.root / "leases" / NAME).exists())
    lease = taken(watch)  # and if it does come back, it begins anew
    assert lease.held and state(endpoint) == "held"
    lease.release()


def test_who_goes_on_without_it_lets_go_of_the_machines_too(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    store, fleet = machine(tmp_path / "a", endpoint)
    assert RemoteLease(endpoint, NAME).attempt()
    with store.lease(NAME, timeout=0.3, program_key=KEY) as lease:
        assert not lease.held and not (store.root / "leases" / NAME).exists()
    assert fleet.endpoint is endpoint and state(endpoint) == "held"


def test_a_forked_child_lets_go_of_nothing(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    store, fleet = machine(tmp_path / "a", endpoint)
    lease = taken(watch_of(store, fleet))
    child = os.fork()
    if child == 0:
        lease.release()
        os._exit(len(fleet_watch._LIVE))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (store.root / "leases" / NAME).exists() and state(endpoint) == "held"
    lease.release()


# -- remotes that fail


def failing(error: EndpointError) -> Callable[[str, str], None]:
    def fail(verb: str, name: str) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [Unreachable("no route"), Garbled("a login page"), EndpointError("odd")])
def test_a_remote_that_fails_is_gone_on_without(
    error: EndpointError, tmp_path: Path, endpoint: MemoryEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "precast.store")
    store, _ = machine(tmp_path / "a", endpoint)
    endpoint.before = failing(error)
    begin = time.monotonic()
    with store.lease(NAME, program_key=KEY) as lease:
        assert lease.held and (store.root / "leases" / NAME).exists() and time.monotonic() - begin < 2
    said = [record.getMessage() for record in caplog.records if "compiling without the fleet's" in record.getMessage()]
    assert len(said) == 1 and str(error) in said[0] and "memory://test" in said[0]
    assert not (store.root / "leases" / NAME).exists()


def test_a_service_that_keeps_no_leases_is_told_of_once(tmp_path: Path, endpoint: MemoryEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = machine(tmp_path / "a", endpoint)
    endpoint.before = failing(Unsupported("no conditional writes"))
    for _ in range(3):
        with store.lease(NAME, program_key=KEY) as lease:
            assert lease.held
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "keeps no leases (no conditional writes)" in said[0]
    assert endpoint.requests["put_new"] == 1


@pytest.mark.parametrize("when", ["at first", "later"])
def test_a_remote_that_hangs_is_gone_on_without(
    when: str, tmp_path: Path, endpoint: MemoryEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_watch, "ANSWER", 0.2)
    monkeypatch.setattr(fleet_watch, "SILENCE", 0.2)
    store, fleet = machine(tmp_path / "a", endpoint)
    assert RemoteLease(endpoint, NAME).attempt()
    goes_on = threading.Event()
    watch = watch_of(store, fleet)
    if when == "later":
        watch.look()
        until(lambda: watch._claim is not None and watch._claim.remote.holder)
    endpoint.before = lambda verb, name: goes_on.wait(30) and None
    begin = time.monotonic()
    lease = taken(watch)
    assert lease.held and time.monotonic() - begin < 5 and (store.root / "leases" / NAME).exists()
    lease.release()
    goes_on.set()
    assert fleet_watch.wait_until_released(20) and state(endpoint) == "held"  # still the other's


def test_what_is_taken_too_late_is_let_go(tmp_path: Path, endpoint: MemoryEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "ANSWER", 0.2)
    store, fleet = machine(tmp_path / "a", endpoint)
    goes_on = threading.Event()
    endpoint.before = lambda verb, name: goes_on.wait(30) and None
    fleet.sent.clear()
    lease = taken(watch_of(store, fleet))
    goes_on.set()
    assert fleet_watch.wait_until_released(20) and not endpoint.content
    lease.release()


def test_another_machine_is_not_waited_for_for_ever(tmp_path: Path, endpoint: MemoryEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_watch, "PATIENCE", 0.3)
    store, fleet = machine(tmp_path / "a", endpoint)
    assert RemoteLease(endpoint, NAME).attempt()
    lease = taken(watch_of(store, fleet))
    assert lease.held and lease.waited > 0.25
    lease.release()


def test_a_holder_goes_on_while_the_remote_fails(tmp_path: Path, endpoint: MemoryEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "precast.store")
    store, fleet = machine(tmp_path / "a", endpoint)
    lease = taken(watch_of(store, fleet, expiry=0.2))
    endpoint.before = failing(Unreachable("no route"))
    until(lambda: any("it may be taken over" in record.getMessage() for record in caplog.records))
    beats = endpoint.requests["get"]
    until(lambda: endpoint.requests["get"] > beats + 3)
    lease.release()
    assert fleet_watch.wait_until_released(20)
    said = [record.getMessage() for record in caplog.records]
    assert sum("it may be taken over" in line for line in said) == 1 and sum("it was not let go, and expires" in line for line in said) == 1


def test_where_the_machines_leases_cannot_be_kept_the_fleets_are_not_asked_for(tmp_path: Path, endpoint: MemoryEndpoint) -> None:
    store, _ = machine(tmp_path / "a", endpoint)
    (store.root / "leases").rmdir()
    (store.root / "leases").write_text("a file where the folder should be")
    with store.lease(NAME, program_key=KEY) as lease:
        assert not lease.held and not endpoint.requests
