"""Pruning a remote tier: what goes, what waits, and races with writers and readers at every step."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from precast.artifact_store import Manifest
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.local.machine_uses import Uses
from precast.artifact_store.maintenance import remote_list, remote_sweep
from precast.artifact_store.maintenance.pins import Pin
from precast.artifact_store.maintenance.policy import Policy
from precast.artifact_store.maintenance.remote_sweep import Swept, prune, take_out
from precast.artifact_store.remote import layout, usage_report
from precast.artifact_store.remote.compress import compress
from precast.artifact_store.remote.endpoint import Unreachable, Unsupported
from precast.artifact_store.remote.remote import Remote
from tests.artifact_store.remote.judges import Anything
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import make

KEY = "model-0123abcd"
HOUR = 3600.0
ALL = Policy(target="*")


def remote(**settings: Any) -> Remote:
    return Remote(MemoryEndpoint(), **{"judge": Anything(), **settings})


def memory(tier: Remote) -> MemoryEndpoint:
    assert isinstance(tier.endpoint, MemoryEndpoint)
    return tier.endpoint


def publish(tier: Remote, number: int, **changes: Any) -> Manifest:
    manifest, blobs = make(number, **changes)
    tier.publish(manifest, blobs.__getitem__)
    return manifest


def ids(tier: Remote, key: str = KEY) -> set[str]:
    index = tier.index(key)
    return set() if index is None else {entry.artifact_id for entry in index.entries}


def whole(tier: Remote) -> bool:
    """Whether everything that is named can be fetched."""
    for key in list(tier.program_keys()):
        index = tier.index(key)
        assert index is not None
        for entry in index.entries:
            tier.fetch(key, entry)
    return True


def objects(tier: Remote) -> set[str]:
    return {name for name in memory(tier).content if name.startswith(layout.OBJECTS)}


def test_what_goes_is_out_of_the_index_at_once_and_its_objects_after_the_grace_period() -> None:
    tier = remote()
    first, second = publish(tier, 1), publish(tier, 2)
    before, now = objects(tier), time.time()
    done = take_out(tier, {first.artifact_id})
    assert [removal.entry.artifact_id for removal in done.removed] == [first.artifact_id] and done.kept == 1
    assert ids(tier) == {second.artifact_id} and objects(tier) == before
    assert (done.objects, done.waiting) == (0, 2) and done.due == pytest.approx(now + HOUR, abs=60)  # the library and the manifest
    assert prune(tier, Policy(), now=now + 0.9 * HOUR).objects == 0
    later = prune(tier, Policy(), now=now + 1.1 * HOUR)
    assert later.objects == 2 and later.freed > 0 and len(objects(tier)) == len(before) - 2
    assert whole(tier) and remote_sweep.CONDEMNED not in memory(tier).content


def test_a_dry_run_changes_nothing_and_tells_the_same() -> None:
    tier = remote()
    publish(tier, 1), publish(tier, 2)
    before = dict(memory(tier).content)
    would = prune(tier, ALL, dry_run=True, grace=0)
    assert memory(tier).content == before
    done = prune(tier, ALL, grace=0)
    assert (would.objects, would.freed, would.kept) == (done.objects, done.freed, done.kept) and done.objects > 0
    assert objects(tier) == set()


def test_policies_are_those_of_a_local_store() -> None:
    tier, now = remote(), time.time()
    made = [publish(tier, number, target=target) for number, target in enumerate(("cpu:x86-64-v3", "cuda:sm_80", "cuda:sm_90"))]
    usage_report.add(tier.endpoint, "server1", {made[1].artifact_id: Uses(3, now + 40 * 86400)})
    assert prune(tier, Policy(target="cuda:*"), dry_run=True).kept == 1
    done = prune(tier, Policy(unused_for=30 * 86400), dry_run=True, now=now + 50 * 86400)
    assert {removal.entry.artifact_id for removal in done.removed} == {made[0].artifact_id, made[2].artifact_id} and done.used == 1
    assert len(prune(tier, Policy(program="mod"), dry_run=True).removed) == 3
    assert len(prune(tier, Policy(keep_last=1), dry_run=True).removed) == 2


def test_what_is_pinned_stays() -> None:
    tier = remote()
    first, second, third = publish(tier, 1), publish(tier, 2), publish(tier, 3, program_key="other")
    remote_list.pin(tier, Pin(first.artifact_id, "", "release 42", "me", 1.0))
    remote_list.pin(tier, Pin("", "other"))
    assert [one.note for one in remote_list.pins(tier)] == ["release 42", ""]
    done = prune(tier, ALL, grace=0)
    assert [removal.entry.artifact_id for removal in done.removed] == [second.artifact_id] and done.pinned == 2
    assert ids(tier) == {first.artifact_id} and ids(tier, "other") == {third.artifact_id} and whole(tier)
    with pytest.raises(StoreError, match="is pinned"):
        take_out(tier, {first.artifact_id})
    memory(tier).put(layout.pin_name(first.artifact_id), b"\xc1 no note")  # the name alone pins
    assert not prune(tier, ALL, grace=0).removed
    remote_list.unpin(tier, remote_list.pins(tier))
    assert len(prune(tier, ALL, grace=0).removed) == 2


def test_objects_of_records_stay() -> None:
    from precast.artifact_store.format.msgpack import digest, pack
    from precast.artifact_store.named_records import _MAGIC

    tier, library = remote(), b"dispatcher"
    content = pack({"blobs": [digest(library)]})
    tier.put_record("native", "cp311", pack([_MAGIC, digest(content), content]), {digest(library): library}.__getitem__)
    publish(tier, 1)
    prune(tier, ALL, grace=0)
    found = tier.record("native", "cp311")
    assert found is not None and dict(found.blobs) == {digest(library): library} and len(objects(tier)) == 1


@pytest.mark.parametrize("name", [layout.program_name("other"), layout.record_name("tuning", "one")])
@pytest.mark.parametrize("data", [b"garbage", compress(b"\x93\xaeprecast-future\x09\x00")])
def test_no_object_goes_while_something_cannot_be_read(name: str, data: bytes) -> None:
    tier = remote()
    publish(tier, 1)
    memory(tier).put(name, data)
    before = objects(tier)
    done = prune(tier, ALL, grace=0)
    assert list(done.unread) == [name] and done.objects == 0 and objects(tier) == before
    memory(tier).remove(name)
    assert prune(tier, ALL, grace=0).objects == len(before)


def test_a_remote_that_lists_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = remote()

    def names(prefix: str) -> Any:
        raise Unsupported("no such verb")

    monkeypatch.setattr(tier.endpoint, "names", names)
    for look in (lambda: prune(tier, ALL), lambda: remote_list.stats(tier), lambda: remote_list.pins(tier)):
        with pytest.raises(StoreError, match="lists nothing, so that what is in it can be neither shown nor pruned"):
            look()


def test_a_read_only_remote_is_not_pruned() -> None:
    tier = remote()
    publish(tier, 1)
    read_only = Remote(tier.endpoint, judge=Anything(), mode="ro")
    with pytest.raises(StoreError, match="used read-only here"):
        prune(read_only, ALL)
    assert len(prune(read_only, ALL, dry_run=True).removed) == 1


def _on(tier: Remote, verb: str, prefix: str, what: Callable[[], None], times: int = 1) -> None:
    """Do something when the sweeper asks for this, before it gets its answer."""
    left = [times]

    def before(asked: str, name: str) -> None:
        if asked == verb and name.startswith(prefix) and left[0]:
            left[0] -= 1
            memory(tier).before = lambda *_: None
            what()
            memory(tier).before = before if left[0] else memory(tier).before

    memory(tier).before = before


# what the sweeper asks for when somebody else publishes
MOMENTS = {
    "before the first look": ("names", layout.PROGRAMS),
    "before the withdrawal": ("replace", layout.PROGRAMS),
    "before objects are listed": ("names", layout.OBJECTS),
    "before what was noted is read": ("get", remote_sweep.CONDEMNED),
    "before objects go": ("remove", layout.OBJECTS),
    "before the list is written": ("put", remote_sweep.CONDEMNED),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("grace", [0.0, HOUR])
@pytest.mark.parametrize("again", [False, True], ids=["another artifact with the same blobs", "the artifact that goes"])
def test_a_writer_publishes_while_it_is_swept(moment: str, grace: float, again: bool) -> None:
    """Nothing that is named afterwards lacks an object, whenever the writer comes."""
    tier = remote()
    doomed, other = publish(tier, 1), publish(tier, 2)
    if grace:
        take_out(tier, {doomed.artifact_id}, now=time.time() - 2 * HOUR)
        publish(tier, 3)
        condemned = take_out(tier, set(ids(tier)) - {other.artifact_id}, now=time.time() - 1.5 * HOUR)
        assert condemned.waiting
    writer = remote_like(tier)
    published: list[Manifest] = []
    _on(tier, *MOMENTS[moment], lambda: published.append(publish(writer, 1 if again else 4)))
    done = prune(tier, Policy(program="model", max_size=0), grace=grace)
    memory(tier).before = lambda *_: None
    assert whole(tier), "named and not there"
    if published and moment == "before the list is written":
        assert published[0].artifact_id in ids(tier)
    assert isinstance(done, Swept)
    publish(tier, 1 if again else 4)  # whoever compiles it next
    assert whole(tier) and len(ids(tier)) >= 1


def remote_like(tier: Remote) -> Remote:
    return Remote(tier.endpoint, judge=Anything())


def test_a_writer_that_found_objects_there_looks_again_when_it_has_named_them() -> None:
    """They were unneeded, and a whole sweep came between its look and its naming."""
    tier = remote()
    publish(tier, 1)
    take_out(tier, ids(tier), now=time.time() - 2 * HOUR)
    writer = remote_like(tier)
    _on(tier, "replace", layout.PROGRAMS, lambda: prune(remote_like(tier), Policy()) and None)
    publish(writer, 1)
    assert len(ids(tier)) == 1 and whole(tier)


def test_a_reader_goes_on_fetching_what_was_withdrawn() -> None:
    tier = remote()
    publish(tier, 1)
    index = tier.index(KEY)
    assert index is not None
    prune(tier, ALL)
    prune(tier, ALL)
    assert tier.fetch(KEY, index.entries[0]).manifest.program_key == KEY


def test_what_is_sent_again_waits_anew() -> None:
    """Its object was noted long ago, and a writer has sent it since, and not named it yet."""
    tier = remote()
    publish(tier, 1)
    now = time.time()
    prune(tier, ALL, now=now - 3 * HOUR)
    for name in objects(tier):
        data, when = memory(tier).content[name]
        memory(tier).content[name] = (data, when + 1)
    done = prune(tier, Policy(), now=now)
    assert done.objects == 0 and done.waiting == 4


def test_a_clock_that_was_ahead_and_a_damaged_list_only_delay() -> None:
    tier = remote()
    publish(tier, 1)
    now = time.time()
    prune(tier, ALL, now=now + 100 * HOUR)
    assert prune(tier, Policy(), now=now).objects == 0
    memory(tier).put(remote_sweep.CONDEMNED, b"garbage")
    assert prune(tier, Policy(), now=now + 2 * HOUR).objects == 0
    assert prune(tier, Policy(), now=now + 4 * HOUR).objects == 4


def test_an_artifact_that_lost_its_objects_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that was not there to look again after it named them: killed, say."""
    tier = remote()
    manifest = publish(tier, 1)
    index = tier.index(KEY)
    assert index is not None
    data = memory(tier).content[layout.program_name(KEY)][0]
    take_out(tier, {manifest.artifact_id})
    _on(tier, "remove", layout.OBJECTS, lambda: memory(tier).put(layout.program_name(KEY), data))
    done = prune(tier, Policy(), grace=0)
    assert done.lost == (manifest.artifact_id,) and ids(tier) == set()


def test_an_endpoint_that_fails_half_way_leaves_nothing_named_and_missing() -> None:
    chance = random.Random(5)
    for _ in range(40):
        tier = remote()
        for number in range(3):
            publish(tier, number)
        left = chance.randrange(1, 40)

        def before(verb: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Unreachable("no answer")

        memory(tier).before = before
        try:
            prune(tier, Policy(keep_last=1), grace=0)
        except Unreachable:
            pass
        memory(tier).before = lambda *_: None
        assert whole(tier) and len(ids(tier)) >= 1


def test_writers_readers_and_two_sweepers_at_once() -> None:
    """Two seconds of it, with a grace period that is longer than a publish takes."""
    tier = remote()
    stop = time.monotonic() + 2.0
    failures: list[BaseException] = []

    def work(what: Callable[[int], object]) -> Callable[[], None]:
        def run() -> None:
            number = 0
            while time.monotonic() < stop:
                number += 1
                try:
                    what(number)
                except BaseException as error:  # noqa: BLE001 - told at the end
                    failures.append(error)
                    return

        return run

    kept = [publish(tier, 100 + number, program_key="kept") for number in range(3)]

    def read(_: int) -> None:
        index = tier.index("kept")
        assert index is not None and len(index.entries) == 3
        for entry in index.entries:
            tier.fetch("kept", entry)

    jobs = [
        work(lambda number: publish(remote_like(tier), number % 5)),
        work(lambda number: publish(remote_like(tier), number % 7)),
        work(lambda _: prune(remote_like(tier), Policy(program=KEY), grace=0.5)),
        work(lambda _: prune(remote_like(tier), Policy(program=KEY, keep_last=1), grace=0.5)),
        work(read),
    ]
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    prune(tier, Policy(), grace=0)
    for number in range(7):
        publish(tier, number)
    assert whole(tier) and ids(tier, "kept") == {manifest.artifact_id for manifest in kept}


def test_figures() -> None:
    tier = remote()
    first, _ = publish(tier, 1), publish(tier, 2, target="cuda:sm_80")
    usage_report.add(tier.endpoint, "server1", {first.artifact_id: Uses(2, 5.0)})
    usage_report.add(tier.endpoint, "server2", {first.artifact_id: Uses(1, 7.0)})
    take_out(tier, {first.artifact_id})
    figures = remote_list.stats(tier)
    assert (figures.artifacts, figures.programs, figures.objects, figures.unnamed, figures.missing) == (1, 1, 6, 2, 0)
    assert figures.by_target == {"cuda:sm_80": 1} and figures.machines == 2 and figures.hits == 0
    index = tier.index(KEY)
    assert index is not None
    memory(tier).remove(layout.object_name(index.entries[0].manifest.stored))
    assert (remote_list.stats(tier).missing, remote_list.stats(tier).objects) == (1, 5)
