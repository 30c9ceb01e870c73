"""The remotes behind a store: reading through, back-fill, budgets, and uploads that survive their process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store.remote import spool
from precast.artifact_store.remote.endpoint import Denied, Unreachable
from precast.artifact_store.remote.program_index import Entry
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.transport.transport import Transport, TransportSettings
from tests.artifact_store.remote.judges import Anything, Signed
from tests.artifact_store.remote.machine import KEY, Everything, Machine, memory, tier
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import make


class Cuda(Everything):
    """Wants artifacts for GPUs."""

    def order(self, entry: Entry) -> int | None:
        return 0 if entry.target.startswith("cuda") else None


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Any]:
    made: list[Machine] = []

    def machine(*tiers: Remote, again: float = 30.0) -> Machine:
        made.append(Machine(tmp_path / f"store-{len(made)}", *tiers, again=again))
        return made[-1]

    yield machine
    for one in made:
        for each in one.remotes.tiers:
            getattr(each.endpoint, "_endpoint", each.endpoint).before = lambda verb, name: None
        one.remotes.close(5.0)


def test_what_one_machine_puts_another_finds(machines: Any) -> None:
    shared = tier()
    one, other = machines(shared), machines(shared)
    ids = {one.put(number) for number in range(3)}
    assert one.sent()
    assert other.store.variants(KEY) == []
    other.look()
    assert {manifest.artifact_id for manifest in other.store.variants(KEY)} == ids
    assert all(other.store.complete(manifest) for manifest in other.store.variants(KEY))
    assert spool.pending(one.store.root) == []


def test_only_what_suits_the_machine_is_fetched(machines: Any) -> None:
    shared = tier()
    one, other = machines(shared), machines(shared)
    one.store.put(*make(0))
    one.store.put(*make(1, target="cuda:sm_90"))
    assert one.sent()
    other.look(wants=Cuda())
    assert [manifest.target for manifest in other.store.variants(KEY)] == ["cuda:sm_90"]


def test_a_program_is_asked_for_once_in_a_while(machines: Any) -> None:
    shared = tier()
    one = machines(shared, again=0.3)
    one.look()
    one.look()
    assert memory(shared).requests["get"] == 1
    time.sleep(0.35)
    one.look()
    assert memory(shared).requests["get"] == 2


def test_a_nearer_remote_is_filled_from_a_farther_one(machines: Any) -> None:
    near, far = tier("memory://near"), tier("memory://far")
    builder = machines(far)
    artifact = builder.put()
    assert builder.sent()
    reader = machines(near, far)
    reader.look()
    assert reader.sent()
    found = near.index(KEY)
    assert found is not None and found.entry(artifact) is not None


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_only_remotes_that_are_written_are_written(machines: Any, mode: Any) -> None:
    shared = tier(mode=mode)
    one = machines(shared)
    one.put()
    assert one.sent()
    assert (shared.index(KEY) is not None) == (mode == "rw")
    assert spool.pending(one.store.root) == []


def test_what_the_nearer_remote_damaged_comes_from_the_farther(machines: Any) -> None:
    near, far = tier("memory://near"), tier("memory://far")
    builder = machines(near, far)
    artifact = builder.put()
    assert builder.sent()
    for name in [name for name in memory(near).content if name.startswith("v1/objects/")]:
        memory(near).content[name] = (b"damaged", 0.0)
    reader = machines(near, far)
    reader.look()
    assert [manifest.artifact_id for manifest in reader.store.variants(KEY)] == [artifact]
    assert reader.sent()


def test_what_a_remote_lost_is_sent_whole_by_who_noticed(machines: Any) -> None:
    shared = tier()
    builder = machines(shared)
    builder.put()
    assert builder.sent()
    for name in [name for name in memory(shared).content if name.startswith("v1/objects/")]:
        del memory(shared).content[name]
    reader = machines(shared)
    reader.look()
    assert reader.store.variants(KEY) == []
    assert "is not there, though it is named" in reader.remotes.said(KEY)
    reader.put()  # it compiles for itself
    assert reader.sent()
    third = machines(shared)
    third.look()
    assert len(third.store.variants(KEY)) == 1


def test_what_is_not_signed_does_not_come_in(machines: Any) -> None:
    shared = tier()
    builder = machines(shared)
    builder.put()
    assert builder.sent()
    reader = machines(Remote(shared.endpoint, judge=Signed()))
    reader.look()
    assert reader.store.variants(KEY) == []
    assert "it is not signed" in reader.remotes.said(KEY)


def test_parts_of_a_program_come_with_it(machines: Any) -> None:
    shared = tier()
    builder, reader = machines(shared), machines(shared)
    builder.store.relate(KEY, "part")
    builder.put()
    builder.store.put(*make(1, program_key="part"))
    assert builder.sent()
    reader.look()
    reader.look("part")
    assert len(reader.store.variants("part")) == 1
    asked = memory(shared).requests["get"]
    reader.look("part")
    assert memory(shared).requests["get"] == asked  # it came with the program, and is not asked for again


def test_records_come_with_a_look_and_by_themselves(machines: Any) -> None:
    shared = tier()
    builder, reader = machines(shared), machines(shared)
    builder.store.put_record("native", "cpython", {"blobs": []})
    builder.store.put_record("tuning", "cpu", {"choices": {"mm": "mkl"}})
    assert builder.sent()
    for _ in reader.remotes.look(KEY, Everything(("native", "cpython"))).news(reader.remotes.seconds()):
        pass
    assert reader.store.record("native", "cpython") is not None
    assert reader.remotes.record("tuning", "cpu")
    assert reader.store.record("tuning", "cpu") == {"choices": {"mm": "mkl"}}
    assert not reader.remotes.record("tuning", "another")


# -- in nobody's way


def test_a_remote_that_hangs_costs_its_budget_once(machines: Any) -> None:
    gate = threading.Event()
    shared = tier(budget=0.3)
    memory(shared).before = lambda verb, name: gate.wait(20) and None
    one = machines(shared)
    try:
        assert 0.25 < one.look() < 0.8
        assert one.look("another") < 0.1
        assert one.look() < 0.1
        assert "has not answered" in one.remotes.said(KEY)
        began = time.monotonic()
        one.put()
        assert time.monotonic() - began < 0.5
    finally:
        gate.set()


def test_a_remote_that_fails_is_not_asked_for_a_while(machines: Any) -> None:
    endpoint = MemoryEndpoint()
    endpoint.before = _raises(Unreachable("gone"))
    transport = Transport(endpoint, settings=TransportSettings(tries=1, failures=3))
    one = machines(Remote(transport, judge=Anything()))
    assert one.remotes.lease_endpoint() is transport
    for number in range(3):
        one.look(f"program-{number}")
    asked = endpoint.requests.total()
    assert asked == 3
    assert one.look("another") < 0.1
    assert endpoint.requests.total() == asked
    assert "is not asked" in one.remotes.said("another")
    assert one.remotes.lease_endpoint() is None
    artifact = one.put()
    assert not one.sent(1.0)
    assert [item.name for item in spool.pending(one.store.root)] == [artifact]  # later, or by the next process


def test_what_comes_too_late_is_there_for_the_next_call(machines: Any) -> None:
    shared = tier(budget=0.1)
    builder, reader = machines(shared), machines(shared)
    artifact = builder.put()
    assert builder.sent()
    gate = threading.Event()
    memory(shared).before = lambda verb, name: gate.wait(20) and None
    assert reader.look() < 0.5
    assert reader.store.variants(KEY) == []
    gate.set()
    until = time.monotonic() + 5
    while not reader.store.variants(KEY) and time.monotonic() < until:
        time.sleep(0.01)
    assert [manifest.artifact_id for manifest in reader.store.variants(KEY)] == [artifact]


def test_a_slow_remote_does_not_hold_back_a_quick_one(machines: Any) -> None:
    near, far = tier("memory://near", budget=5.0), tier("memory://far", budget=5.0)
    builder = machines(far)
    builder.put()
    assert builder.sent()
    gate = threading.Event()
    memory(near).before = lambda verb, name: gate.wait(20) and None
    reader = machines(near, far)
    began = time.monotonic()
    try:
        for _ in reader.remotes.look(KEY, Everything()).news(reader.remotes.seconds()):
            if reader.store.variants(KEY):
                break
        assert time.monotonic() - began < 2
        assert len(reader.store.variants(KEY)) == 1
    finally:
        gate.set()


def test_a_store_that_is_read_only_says_so(machines: Any) -> None:
    shared = tier()
    builder, reader = machines(shared), machines(shared)
    builder.put()
    assert builder.sent()
    reader.store.readonly = True
    reader.look()
    assert "is read-only" in reader.remotes.said(KEY)


# -- uploads


def test_what_could_not_be_sent_is_left_to_the_next_process(machines: Any) -> None:
    shared = tier()
    memory(shared).before = _raises(Unreachable("gone"))
    one = machines(shared)
    artifact = one.put()
    assert not one.sent(0.3)
    assert [item.name for item in spool.pending(one.store.root)] == [artifact]
    assert spool.artifacts(one.store.root) == {artifact}
    memory(shared).before = lambda verb, name: None
    one.remotes.uploads.wake(always=True)
    assert one.sent()
    assert spool.pending(one.store.root) == []


def test_closing_while_something_is_sent_leaves_the_rest_noted(machines: Any, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = MemoryEndpoint()
    begun, go_on = threading.Event(), threading.Event()

    def hang(verb: str, name: str) -> None:
        if verb == "get":
            begun.set()
            go_on.wait(20)

    endpoint.before = hang
    one = machines(Remote(Transport(endpoint), judge=Anything()))
    artifact = one.put()
    assert begun.wait(20)
    thread = one.remotes.uploads._thread
    one.remotes.close()
    go_on.set()
    thread.join(20)
    assert not thread.is_alive()
    assert [item.name for item in spool.pending(one.store.root)] == [artifact]
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    one.put(1)
    assert one.remotes.uploads._thread is None or not one.remotes.uploads._thread.is_alive(), "what is closed begins no thread again"
    assert len(spool.pending(one.store.root)) == 2


def test_the_next_process_goes_on(machines: Any, tmp_path: Path) -> None:
    shared = tier()
    pid = os.fork()
    if not pid:  # dies before anything is sent
        memory(shared).before = _raises(Unreachable("gone"))
        Machine(tmp_path / "store-0", shared).put()
        os._exit(0)
    os.waitpid(pid, 0)
    one = machines(shared)
    assert one.store.root == tmp_path / "store-0"
    assert len(spool.pending(one.store.root)) == 1
    one.look()  # any miss wakes it
    until = time.monotonic() + 10
    while spool.pending(one.store.root) and time.monotonic() < until:
        time.sleep(0.02)
    found = shared.index(KEY)
    assert found is not None and len(found.entries) == 1


def test_notes_of_a_process_that_died_as_it_took_the_lease_are_sent(machines: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("precast.artifact_store.remote.behind.uploads.LONGEST_PAUSE", 0.05)
    shared = tier()
    pid = os.fork()
    if not pid:
        memory(shared).before = _raises(Unreachable("gone"))
        Machine(tmp_path / "store-0", shared).put()
        os._exit(0)
    os.waitpid(pid, 0)
    lease = tmp_path / "store-0" / "leases" / "spool"
    lease.parent.mkdir(exist_ok=True)
    lease.write_bytes(b"")  # names nobody who could be found dead
    one = machines(shared)
    one.remotes.uploads._watch.expiry = 0.3
    one.look()
    until = time.monotonic() + 10
    while spool.pending(one.store.root) and time.monotonic() < until:
        time.sleep(0.02)
    assert spool.pending(one.store.root) == []
    found = shared.index(KEY)
    assert found is not None and len(found.entries) == 1


def test_what_is_refused_is_not_tried_again_and_stays_noted(machines: Any, caplog: pytest.LogCaptureFixture) -> None:
    shared = tier()
    memory(shared).before = _raises(Denied("no rights"))
    one = machines(shared)
    one.put(0)
    one.put(1)
    assert one.sent()
    assert len(spool.pending(one.store.root)) == 2
    asked = memory(shared).requests.total()
    one.put(2)
    one.sent(0.5)
    assert memory(shared).requests.total() == asked
    assert sum("refuses what is sent" in record.message for record in caplog.records) == 1


def test_what_was_pruned_before_it_was_sent_is_dropped(machines: Any, caplog: pytest.LogCaptureFixture) -> None:
    shared = tier()
    memory(shared).before = _raises(Unreachable("gone"))
    one = machines(shared)
    artifact = one.put()
    assert not one.sent(0.2)
    one.store.remove(artifact, KEY)
    memory(shared).before = lambda verb, name: None
    one.remotes.uploads.wake(always=True)
    assert one.sent()
    assert spool.pending(one.store.root) == []
    assert "not in the local store any more" in caplog.text


def test_a_note_that_is_none_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "odd.msgpack").write_bytes(b"\x81\xa1x\x01")
    assert spool.pending(tmp_path) == []
    assert "is no note" in caplog.text


def _raises(error: Exception) -> Any:
    def before(verb: str, name: str) -> None:
        raise error

    return before
