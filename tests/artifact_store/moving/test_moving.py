"""Moving between places: what is chosen, what is not sent again, what a policy lets in, and what one failure leaves of the others."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.moving.local import LocalPlace
from precast.artifact_store.moving.place import Holding, RecordName, Unlistable
from precast.artifact_store.moving.plan import difference, plan
from precast.artifact_store.moving.remote_place import RemotePlace
from precast.artifact_store.moving.selection import Build, Selection
from precast.artifact_store.moving.transfer import Report, transfer
from precast.artifact_store.remote.endpoint import Unsupported
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.trust.judge import judge_for
from precast.artifact_store.trust.keyring import Keyring
from tests.artifact_store.remote.judges import Anything
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import complete, fill, make, snapshot
from tests.artifact_store.trust.known_keys import known_key

EVERYTHING = Selection()


def holding(**changes: Any) -> Holding:
    fields: dict[str, Any] = {
        "program_key": "encoder-0123abcd",
        "program_name": "app:encoder",
        "artifact_id": "ab" * 32,
        "target": "cpu:native-77aa",
        "made": 1000.0,
        "size": 10,
        "checksum": "cd" * 32,
        "blobs": {},
    }
    return Holding(**{**fields, **changes})


def on_cpu(target: str) -> bool:
    return target.startswith("cpu:")


@pytest.mark.parametrize(
    ("selection", "changes", "chosen"),
    [
        (Selection(), {}, True),
        (Selection(programs=("encoder",)), {}, True),
        (Selection(programs=("0123",)), {}, True),
        (Selection(programs=("decoder", "app:enc")), {}, True),
        (Selection(programs=("decoder",)), {}, False),
        (Selection(targets=("cpu:*",)), {}, True),
        (Selection(targets=("cuda:*", "cpu:native-*")), {}, True),
        (Selection(targets=("cpu:native",)), {}, False),
        (Selection(newer_than=60), {"made": 950.0}, True),
        (Selection(newer_than=60), {"made": 930.0}, False),
        (Selection(older_than=60), {"made": 930.0}, True),
        (Selection(older_than=60), {"made": 950.0}, False),
        (Selection(newer_than=60), {"made": 0.0}, False),
        (Selection(older_than=60), {"made": 0.0}, False),
        (Selection(programs=("encoder",), targets=("cuda:*",)), {}, False),
        (Selection(build=Build((("encoder-0123abcd", on_cpu),))), {}, True),
        (Selection(build=Build((("encoder-0123abcd", on_cpu),))), {"target": "cuda:sm_90"}, False),
        (Selection(build=Build((("encoder-0123abcd", on_cpu),))), {"program_key": "encoder-0123abcd.77"}, True),
        (Selection(build=Build((("encoder-0123abcd", on_cpu),))), {"program_key": "encoder-0123abcd77"}, False),
    ],
)
def test_every_condition_must_hold(selection: Selection, changes: dict[str, Any], chosen: bool) -> None:
    assert selection.accepts(holding(**changes), now=1000.0) is chosen


def move(source: Any, destination: Any, selection: Selection = EVERYTHING, jobs: int = 4) -> Report:
    return transfer(source, destination, plan(source, destination, selection), jobs=jobs)


def remote(endpoint: MemoryEndpoint, judge: Any = None, **more: Any) -> RemotePlace:
    return RemotePlace(Remote(endpoint, judge or Anything()), **more)


def test_a_store_goes_through_a_remote_and_comes_out_as_it_was(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 6)
    store.put_record("tuning", "cpu", {"choices": {"mm": "onednn"}})
    image = b"native library"
    store.put_record("native", "cp311", {"library": digest(image), "blobs": [digest(image)]}, {digest(image): image})
    endpoint = MemoryEndpoint()
    sent = move(LocalPlace(store), remote(endpoint))
    assert sent.good and [h.artifact_id for h in sent.moved] == sorted(ids) and len(sent.records) == 2
    other = Store.open(tmp_path / "b")
    told: list[int] = []
    source, destination = remote(endpoint), LocalPlace(other)
    todo = plan(source, destination, EVERYTHING)
    came = transfer(source, destination, todo, told=told.append)
    assert came.good and sum(told) == todo.size > 0
    assert all(complete(other, manifest) for manifest in other.manifests())
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")
    assert difference(LocalPlace(store), LocalPlace(other), EVERYTHING).none


def test_what_is_there_is_not_sent_again(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "a", 3, size=5000)
    endpoint = MemoryEndpoint()
    first = move(LocalPlace(store), remote(endpoint))
    before, puts = endpoint.sent, endpoint.requests["put"]
    again = move(LocalPlace(store), remote(endpoint))
    assert (again.moved, again.sent, endpoint.sent) == ([], 0, before) and first.sent > 0
    store.put(*make(3, size=5000))
    more = move(LocalPlace(store), remote(endpoint))
    assert [h.name[1] for h in more.moved] and len(more.moved) == 1
    assert endpoint.requests["put"] - puts == 2  # its manifest and its library: the two sources are there
    assert more.spared > 0


def test_blobs_that_came_before_a_kill_are_not_fetched_again(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "a", 1, size=5000)
    endpoint = MemoryEndpoint()
    move(LocalPlace(store), remote(endpoint))
    manifest = store.get(first)
    assert manifest is not None
    other = Store.open(tmp_path / "b")
    big = max(manifest.blobs, key=lambda blob: manifest.blobs[blob])
    data = store.blob(big)
    assert data is not None
    other.put_blob(big, data)
    assert list(other.manifests()) == []
    came = move(remote(endpoint), LocalPlace(other))
    assert came.spared == 5000 and complete(other, manifest) and other.get(first) is not None


def test_a_selection_moves_nothing_else(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a")
    store.put(*make(1, program_key="encoder-1", program_name="encoder"))
    store.put(*make(2, program_key="decoder-1", program_name="decoder"))
    old = store.put(*make(3, program_key="decoder-1", program_name="decoder", target="cuda:sm_90"))
    os.utime(store.path(f"programs/decoder-1/{old}.msgpack"), (1000, time.time() - 10 * 86400))
    for selection, names in (
        (Selection(programs=("encoder",)), ["encoder"]),
        (Selection(targets=("cuda:*",)), ["decoder"]),
        (Selection(older_than=86400), ["decoder"]),
        (Selection(newer_than=86400), ["decoder", "encoder"]),
    ):
        endpoint = MemoryEndpoint()
        report = move(LocalPlace(store), remote(endpoint), selection)
        assert sorted(h.program_name for h in report.moved) == names, selection
        assert sum(name.startswith("v1/programs/") for name in endpoint.content) == len(set(names))


class Silent(MemoryEndpoint):
    """Lists nothing, as a plain HTTP cache."""

    def names(self, prefix: str) -> Any:
        raise Unsupported("no listing")


def test_a_remote_that_lists_nothing_is_asked_for_programs_and_their_parts(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a")
    for key in ("main-1", "main-1.resumed", "called-1", "other-1"):
        store.put(*make(program_key=key, program_name=key))
    store.put_record("native", "cp311", {"blobs": []})
    endpoint = Silent()
    pushed = move(LocalPlace(store), remote(endpoint))
    assert pushed.good and len(pushed.moved) == 4
    assert move(LocalPlace(store), remote(endpoint)).moved == []
    Remote(endpoint, Anything()).relate("main-1", ["main-1.resumed", "called-1"])
    other = LocalPlace(Store.open(tmp_path / "b"))
    with pytest.raises(Unlistable, match="--build"):
        plan(remote(endpoint), other, EVERYTHING)
    build = Selection(build=Build((("main-1", on_cpu),)))
    source = remote(endpoint, guesses=[RecordName("native", "cp311"), RecordName("native", "cp313")])
    came = move(source, other, build)
    assert [h.program_key for h in came.moved] == ["called-1", "main-1", "main-1.resumed"]
    assert came.records == [RecordName("native", "cp311")]


def test_parts_of_chosen_programs_come_along_from_a_remote_that_lists_too(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "a")
    for key in ("main-1", "called-1", "deep-1", "other-1"):
        store.put(*make(program_key=key))
    endpoint = MemoryEndpoint()
    move(LocalPlace(store), remote(endpoint))
    Remote(endpoint, Anything()).relate("main-1", ["called-1"])
    Remote(endpoint, Anything()).relate("called-1", ["deep-1"])
    build = Selection(build=Build((("main-1", on_cpu),)))
    came = move(remote(endpoint), LocalPlace(Store.open(tmp_path / "b")), build)
    assert [h.program_key for h in came.moved] == ["called-1", "deep-1", "main-1"]


def test_from_one_remote_to_another(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 3)
    store.put_record("tuning", "cpu", {"choices": {}})
    one, two = MemoryEndpoint(), MemoryEndpoint("memory://other")
    assert move(LocalPlace(store, known_key("ci")), remote(one)).good
    judge = judge_for("signed", keyring=lambda: keyring("ci"))
    across = move(remote(one, judge), remote(two))
    assert across.good and sorted(h.artifact_id for h in across.moved) == sorted(ids) and len(across.records) == 1
    assert {name for name in one.content if "objects" in name} == {name for name in two.content if "objects" in name}
    assert move(remote(two, judge), LocalPlace(Store.open(tmp_path / "b"))).good
    assert difference(remote(one), remote(two), EVERYTHING).none


# -- trust


def keyring(*names: str) -> Keyring:
    keys = [known_key(name).public for name in names]
    return Keyring({key.id: key for key in keys}, {}, {})


def test_only_what_a_trusted_key_signed_comes_in(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 2)
    store.put_record("tuning", "cpu", {"choices": {}})
    signed = store.get(ids[0])
    assert signed is not None
    store.sign(signed, known_key("ci"))
    endpoint = MemoryEndpoint()
    assert move(LocalPlace(store), remote(endpoint)).good
    judge = judge_for("signed", keyring=lambda: keyring("ci"))
    other = Store.open(tmp_path / "b")
    came = move(remote(endpoint, judge), LocalPlace(other))
    assert [h.artifact_id for h in came.moved] == [ids[0]] and not came.good
    assert {(trouble.what, trouble.refused) for trouble in came.troubles} == {(ids[1], True), ("tuning/cpu", True)}
    assert all("not signed" in trouble.reason for trouble in came.troubles)
    assert [manifest.artifact_id for manifest in other.manifests()] == [ids[0]]
    assert [one.key for one in other.signatures(signed)] == [known_key("ci").public.id]


def test_what_leaves_is_signed_where_a_key_is_given_and_signatures_follow_later(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 2)
    store.put_record("tuning", "cpu", {"choices": {}})
    endpoint = MemoryEndpoint()
    assert move(LocalPlace(store), remote(endpoint)).good
    objects = {name for name in endpoint.content if name.startswith("v1/objects/")}
    signing = LocalPlace(store, known_key("ci"))
    later = move(signing, remote(endpoint))
    assert later.good and later.moved == [] and sorted(h.artifact_id for h in later.signed) == sorted(ids)
    assert {name for name in endpoint.content if name.startswith("v1/objects/")} == objects
    judge = judge_for("by:ci", keyring=lambda: keyring("ci"))
    other = Store.open(tmp_path / "b")
    came = move(remote(endpoint, judge), LocalPlace(other))
    assert sorted(h.artifact_id for h in came.moved) == sorted(ids)
    assert move(signing, remote(endpoint)).signed == []
    third = LocalPlace(Store.open(tmp_path / "c"))
    assert move(LocalPlace(other), third).good
    assert all(h.signers == {known_key("ci").public.id} for h in third.holdings())


def test_what_nobody_trusts_gives_way_to_a_signed_build_of_the_same(tmp_path: Path) -> None:
    judge = judge_for("signed", keyring=lambda: keyring("ci"))
    stranger, ours = Store.open(tmp_path / "stranger"), Store.open(tmp_path / "ours")
    stranger.put(*make(evidence={"seconds": 1}))
    mine = ours.get(ours.put(*make(evidence={"seconds": 2})))
    assert mine is not None
    endpoint = MemoryEndpoint()
    assert move(LocalPlace(stranger), remote(endpoint)).good
    assert move(LocalPlace(ours, known_key("ci")), remote(endpoint)).moved == [], "where all are accepted the first stays"
    assert len(move(LocalPlace(ours, known_key("ci")), remote(endpoint, judge)).moved) == 1
    (there,) = remote(endpoint).holdings()
    assert there.checksum == mine.checksum and there.signers == {known_key("ci").public.id}
    assert move(LocalPlace(stranger), remote(endpoint, judge)).moved == [], "nor does a stranger's replace it"


# -- failures


def test_one_damaged_artifact_does_not_stop_the_others(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 3)
    broken = store.get(ids[1])
    assert broken is not None
    path = store.path(f"objects/{broken.graphs['forward'].library[:2]}/{broken.graphs['forward'].library}")
    path.chmod(0o600)
    path.write_bytes(b"flipped")
    endpoint = MemoryEndpoint()
    report = move(LocalPlace(store), remote(endpoint))
    assert [trouble.what for trouble in report.troubles] == [ids[1]] and len(report.moved) == 2
    other = Store.open(tmp_path / "b")
    assert move(remote(endpoint), LocalPlace(other)).good
    assert sorted(m.artifact_id for m in other.manifests()) == sorted({*ids} - {ids[1]})


def test_a_lost_object_is_said_and_leaves_no_artifact(tmp_path: Path) -> None:
    store, (only,) = fill(tmp_path / "a", 1, size=5000)
    endpoint = MemoryEndpoint()
    move(LocalPlace(store), remote(endpoint))
    lost = max((name for name in endpoint.content if name.startswith("v1/objects/")), key=lambda name: len(endpoint.content[name][0]))
    del endpoint.content[lost]
    other = Store.open(tmp_path / "b")
    report = move(remote(endpoint), LocalPlace(other))
    assert [trouble.what for trouble in report.troubles] == [only] and "is not there, though it is named" in report.troubles[0].reason
    assert list(other.manifests()) == []


def test_a_push_with_repair_brings_back_what_a_remote_lost(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 2, size=5000)
    endpoint = MemoryEndpoint()
    move(LocalPlace(store), remote(endpoint))
    before = dict(endpoint.content)
    for name in [name for name in endpoint.content if "objects" in name]:
        del endpoint.content[name]
    assert move(LocalPlace(store), remote(endpoint)).moved == [], "an index that names an artifact is believed"
    assert len(move(LocalPlace(store), remote(endpoint, repair=True)).moved) == len(ids)
    assert {name: data for name, (data, _) in endpoint.content.items() if "objects" in name} == {
        name: data for name, (data, _) in before.items() if "objects" in name
    }
    assert move(remote(endpoint), LocalPlace(Store.open(tmp_path / "b"))).good


def test_a_pull_brings_back_a_blob_that_was_set_aside(tmp_path: Path) -> None:
    store, (only,) = fill(tmp_path / "a", 1, size=5000)
    endpoint = MemoryEndpoint()
    move(LocalPlace(store), remote(endpoint))
    manifest = store.get(only)
    assert manifest is not None
    path = store.path(f"objects/{manifest.graphs['forward'].library[:2]}/{manifest.graphs['forward'].library}")
    path.chmod(0o600)
    path.write_bytes(b"flipped")
    assert store.blob(manifest.graphs["forward"].library) is None and not path.exists()
    healed = move(remote(endpoint), LocalPlace(store))
    assert len(healed.moved) == 1 and complete(store, manifest)
    assert move(remote(endpoint), LocalPlace(store)).moved == []


def test_a_pull_replaces_what_the_store_itself_would_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_TRUST", str(tmp_path / "keyring"))
    (tmp_path / "keyring").write_text(f"{known_key('ci').public.line()}\n")
    theirs = Store.open(tmp_path / "a")
    theirs.put(*make(evidence={"seconds": 2}))
    endpoint = MemoryEndpoint()
    move(LocalPlace(theirs, known_key("ci")), remote(endpoint))
    Store.open(tmp_path / "b").put(*make(evidence={"seconds": 1}))
    for policy, count in (("any", 0), ("signed", 1), ("signed", 0)):
        store = Store.open(tmp_path / "b", trust=policy)
        assert len(move(remote(endpoint, judge_for("signed")), LocalPlace(store)).moved) == count, policy


def test_a_destination_that_cannot_be_written_fails_each(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "a", 2)
    report = move(LocalPlace(store), LocalPlace(Store.open(tmp_path / "b", readonly=True)))
    assert len(report.troubles) == len(ids) and "read-only" in report.troubles[0].reason


def test_a_fault_of_precast_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = fill(tmp_path / "a", 1)
    monkeypatch.setattr(Store, "put_manifest", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        move(LocalPlace(store), LocalPlace(Store.open(tmp_path / "b")))


def test_a_manifest_without_its_blobs_is_not_put(tmp_path: Path) -> None:
    manifest, _ = make()
    with pytest.raises(StoreError, match="move it again"):
        Store.open(tmp_path / "a").put_manifest(manifest)


# -- differences


def test_differences_tell_code_from_notes(tmp_path: Path) -> None:
    one, two = Store.open(tmp_path / "a"), Store.open(tmp_path / "b")
    for store, number in ((one, 1), (two, 2)):
        store.put(*make(number))
        store.put(*make(7))
    one.put(*make(8, evidence={"seconds": 1}))
    two.put(*make(8, evidence={"seconds": 2}))
    manifest, blobs = make(9)
    one.put(manifest, blobs)
    extra = blobs.add(b"another library")
    two.put(*make(9, blobs={**manifest.blobs, extra: 15})[:1], blobs)
    found = difference(LocalPlace(one), LocalPlace(two), EVERYTHING)
    assert len(found.here) == len(found.there) == found.equal == 1 and not found.none
    assert sorted(change.code for change in found.changed) == [False, True]
    two.remove(next(h.artifact_id for h in found.there))
    two.put(*make(1))
    two.put(*make(9))
    assert difference(LocalPlace(one), LocalPlace(two), EVERYTHING).none
