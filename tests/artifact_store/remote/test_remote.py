"""One remote tier over an endpoint in memory: what is published is what is fetched, and nothing hostile comes in."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from precast.artifact_store import BlobSet, Manifest
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.msgpack import digest, pack
from precast.artifact_store.remote import index_update, layout
from precast.artifact_store.remote.compress import compress
from precast.artifact_store.remote.endpoint import Denied, EndpointError, Garbled, Unreachable, Unsupported, Versioned
from precast.artifact_store.remote.program_index import ProgramIndex
from precast.artifact_store.remote.remote import Lost, Remote
from tests.artifact_store.remote.judges import Anything, Signed, sign
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import make

KEY = "model-0123abcd"
INDEX = layout.program_name(KEY)


def remote(endpoint: MemoryEndpoint | None = None, **settings: Any) -> Remote:
    return Remote(endpoint or MemoryEndpoint(), **{"judge": Anything(), **settings})


def publish(tier: Remote, number: int = 0, **settings: Any) -> tuple[Manifest, BlobSet]:
    manifest, blobs = make(number)
    tier.publish(manifest, blobs.__getitem__, **settings)
    return manifest, blobs


def memory(tier: Remote) -> MemoryEndpoint:
    assert isinstance(tier.endpoint, MemoryEndpoint)
    return tier.endpoint


def index(tier: Remote) -> ProgramIndex:
    found = tier.index(KEY)
    assert found is not None
    return found


def test_what_is_published_is_what_is_fetched() -> None:
    tier = remote()
    manifest, blobs = publish(tier)
    (entry,) = index(tier).entries
    fetched = tier.fetch(KEY, entry)
    assert fetched.manifest.to_bytes() == manifest.to_bytes()
    assert dict(fetched.blobs) == dict(blobs)
    assert (entry.target, entry.versions, entry.checksum) == (manifest.target, manifest.versions, manifest.checksum)
    assert fetched.received == entry.size


def test_nothing_of_a_program_is_no_index() -> None:
    assert remote().index(KEY) is None


def test_what_the_caller_has_is_not_fetched() -> None:
    tier = remote()
    _, blobs = publish(tier)
    (entry,) = index(tier).entries
    before = memory(tier).requests["get"]
    assert tier.fetch(KEY, entry, has=lambda blob: True).blobs == {}
    assert memory(tier).requests["get"] == before + 1


def test_one_request_says_what_a_program_has() -> None:
    tier = remote()
    for number in range(5):
        publish(tier, number)
    before = memory(tier).requests.total()
    assert len(index(tier).entries) == 5
    assert memory(tier).requests.total() == before + 1


def test_shared_content_is_sent_once() -> None:
    tier = remote()
    publish(tier, 0)
    manifest, blobs = make(1)
    receipt = tier.publish(manifest, blobs.__getitem__)
    assert receipt.objects == 2  # its own library and manifest: the two sources are those of the first
    again = tier.publish(manifest, blobs.__getitem__)
    assert (again.known, again.sent) == (True, 0)


def test_content_that_no_index_names_is_found_and_not_sent_again() -> None:
    tier = remote()
    manifest, blobs = publish(tier)
    del memory(tier).content[INDEX]
    receipt = tier.publish(manifest, blobs.__getitem__)
    assert (receipt.objects, receipt.present) == (0, 4)
    assert index(tier).entry(manifest.artifact_id) is not None


@pytest.mark.parametrize("puts", range(4))
def test_half_an_upload_is_invisible(puts: int) -> None:
    tier = remote()
    manifest, blobs = make()
    left = [puts]

    def before(verb: str, name: str) -> None:
        if verb.startswith(("put", "replace")):
            left[0] -= 1
            if left[0] < 0:
                raise Unreachable("gone")

    memory(tier).before = before
    with pytest.raises(Unreachable):
        tier.publish(manifest, blobs.__getitem__)
    assert tier.index(KEY) is None
    memory(tier).before = lambda verb, name: None
    tier.publish(manifest, blobs.__getitem__)
    assert dict(tier.fetch(KEY, index(tier).entries[0]).blobs) == dict(blobs)


@pytest.mark.parametrize("conditional", [True, False], ids=["compare-and-swap", "read back"])
def test_writers_at_the_same_time_lose_nothing(conditional: bool) -> None:
    endpoint = MemoryEndpoint() if conditional else Unconditional()
    threads = [threading.Thread(target=publish, args=(remote(endpoint), number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {entry.artifact_id for entry in index(remote(endpoint)).entries}
    expected = {make(number)[0].artifact_id for number in range(8)}
    assert found == expected if conditional else found <= expected and found


class Unconditional(MemoryEndpoint):
    """As a plain HTTP cache."""

    def put_new(self, name: str, data: bytes) -> bool:
        raise Unsupported("no conditional put")

    def replace(self, name: str, data: bytes, version: str) -> bool:
        raise Unsupported("no conditional put")


def test_without_conditional_puts_an_entry_that_another_writer_undid_is_written_again() -> None:
    endpoint = Unconditional()
    tier = remote(endpoint)
    publish(tier, 1)
    other = endpoint.content[INDEX]
    undone = []

    def before(verb: str, name: str) -> None:
        if verb == "get" and name == INDEX and len(undone) == 1:
            endpoint.content[INDEX] = other  # another writer, who read before we wrote
        if verb == "put" and name == INDEX:
            undone.append(name)

    endpoint.before = before
    publish(tier, 2)
    assert len(undone) == 2
    assert len(index(tier).entries) == 2


def test_two_builds_of_one_artifact_the_first_stays() -> None:
    tier = remote()
    first, blobs = make()
    second = make(provenance={"source": "another"})[0]
    assert first.artifact_id == second.artifact_id and first.checksum != second.checksum
    tier.publish(first, blobs.__getitem__)
    assert tier.publish(second, blobs.__getitem__).known
    assert index(tier).entries[0].checksum == first.checksum


def test_an_untrusted_build_gives_way_to_a_signed_one() -> None:
    endpoint = MemoryEndpoint()
    first, blobs = make()
    second = make(provenance={"source": "another"})[0]
    remote(endpoint).publish(first, blobs.__getitem__)
    signed = remote(endpoint, judge=Signed())
    with pytest.raises(Untrusted, match="it is not signed"):
        signed.fetch(KEY, index(signed).entries[0])
    signed.publish(second, blobs.__getitem__, [statement_of(second)])
    assert signed.fetch(KEY, index(signed).entries[0]).manifest.checksum == second.checksum


def test_a_signature_is_added_to_what_is_there() -> None:
    endpoint = MemoryEndpoint()
    manifest, blobs = publish(remote(endpoint))
    signed = remote(endpoint, judge=Signed())
    receipt = signed.publish(manifest, blobs.__getitem__, [statement_of(manifest)])
    assert receipt.objects == 0
    assert signed.fetch(KEY, index(signed).entries[0]).signatures == (statement_of(manifest),)


def statement_of(manifest: Manifest) -> Any:
    from precast.artifact_store.trust.signatures import manifest_statement

    return sign(manifest_statement(manifest.program_key, manifest.artifact_id, manifest.checksum))


def test_repair_sends_what_was_lost() -> None:
    tier = remote()
    manifest, blobs = publish(tier)
    (entry,) = index(tier).entries
    for name in [name for name in memory(tier).content if name.startswith(layout.OBJECTS)]:
        memory(tier).content[name] = (b"damaged", 0.0)
    with pytest.raises(EndpointError):
        tier.fetch(KEY, entry)
    assert tier.publish(manifest, blobs.__getitem__).known  # nobody told it
    tier.publish(manifest, blobs.__getitem__, repair=True)
    assert dict(tier.fetch(KEY, index(tier).entries[0]).blobs) == dict(blobs)


def test_a_read_only_tier_is_not_written() -> None:
    manifest, blobs = make()
    with pytest.raises(Denied, match="mode=ro"):
        remote(mode="ro").publish(manifest, blobs.__getitem__)


def test_records_travel_with_their_blobs() -> None:
    tier = remote()
    library = b"native runtime"
    file = record_file({"library": digest(library), "blobs": [digest(library)]})
    tier.put_record("native", "cpython-311", file, {digest(library): library}.__getitem__)
    found = tier.record("native", "cpython-311")
    assert found is not None
    assert (found.file, dict(found.blobs)) == (file, {digest(library): library})
    assert tier.record("native", "another") is None
    assert tier.put_record("native", "cpython-311", file, {}.__getitem__).known


def record_file(record: dict[str, Any]) -> bytes:
    content = pack(record)
    return pack(["precast-record-1", digest(content), content])


def test_withdrawn_and_related() -> None:
    tier = remote()
    first, _ = publish(tier, 0)
    second, _ = publish(tier, 1)
    tier.relate(KEY, ["part-1", "part-2", KEY])
    tier.withdraw(KEY, [first.artifact_id])
    found = index(tier)
    assert [entry.artifact_id for entry in found.entries] == [second.artifact_id]
    assert found.related == ("part-1", "part-2")
    assert list(tier.program_keys()) == [KEY]


# -- what is hostile


def _as_index(value: Any) -> bytes:
    return compress(pack(value))


def _changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Remote], bytes]:
    """The index with its first entry changed."""

    def make_it(tier: Remote) -> bytes:
        import zstandard

        from precast.artifact_store.format.msgpack import unpack

        content = list(unpack(zstandard.decompress(memory(tier).content[INDEX][0])))
        entry = dict(content[4][0])
        change(entry)
        return _as_index([*content[:4], [entry], content[5]])

    return make_it


HOSTILE: dict[str, Callable[[Remote], bytes]] = {
    "empty": lambda tier: b"",
    "no frame": lambda tier: b"<html>please log in</html>",
    "truncated": lambda tier: memory(tier).content[INDEX][0][:-9],
    "more behind it": lambda tier: memory(tier).content[INDEX][0] + b"more",
    "no msgpack": lambda tier: compress(b"\xc1\xc1\xc1"),
    "deep": lambda tier: compress(b"\x91" * 100_000 + b"\x90"),
    "another program's": lambda tier: _as_index(["precast-index", 1, "other", "", [], []]),
    "a newer format": lambda tier: _as_index(["precast-index", 2, KEY, "", [], []]),
    "a number as entries": lambda tier: _as_index(["precast-index", 1, KEY, "", 7, []]),
    "a path as related": lambda tier: _as_index(["precast-index", 1, KEY, "", [], ["../../etc"]]),
    "a bomb": lambda tier: compress(bytes(layout.MAX_INDEX + 1)),
    "an id that is a path": _changed(lambda entry: entry.update(id="../" * 21 + "x")),
    "a target with a line end": _changed(lambda entry: entry.update(target="cpu\nx")),
    "a huge blob": _changed(lambda entry: entry.update(blobs=[["ab" * 32, 1 << 60, "cd" * 32, 10]])),
    "a negative size": _changed(lambda entry: entry.update(blobs=[["ab" * 32, -1, "cd" * 32, 10]])),
    "a compressed size beyond the content's": _changed(lambda entry: entry.update(blobs=[["ab" * 32, 1, "cd" * 32, 1 << 40]])),
    "an object's name that is a path": _changed(lambda entry: entry.update(manifest=["ab" * 32, 5, "../x", 10])),
    "a short signature": _changed(lambda entry: entry.update(signatures=[["ab" * 16, b"x"]])),
    "a field more": _changed(lambda entry: entry.update(more=1)),
    "a field less": _changed(lambda entry: entry.pop("made")),
    "nan as a time": _changed(lambda entry: entry.update(made=float("nan"))),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_index_is_garbled(kind: str) -> None:
    tier = remote()
    publish(tier)
    memory(tier).content[INDEX] = (HOSTILE[kind](tier), 0.0)
    with pytest.raises(Garbled):
        tier.index(KEY)


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if kind != "a newer format"])
def test_a_damaged_index_is_written_anew(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_update, "DAMAGED_PAUSES", (0.01, 0.01))
    tier = remote()
    publish(tier)
    memory(tier).content[INDEX] = (HOSTILE[kind](tier), 0.0)
    manifest, _ = publish(tier, 1)
    assert [entry.artifact_id for entry in index(tier).entries] == [manifest.artifact_id]


def test_no_changed_bit_of_an_index_changes_what_it_says() -> None:
    """It has no digest elsewhere: a changed one would be believed, and written back by the next change."""
    tier = remote()
    publish(tier)
    data, right, ignored = memory(tier).content[INDEX][0], index(tier), 0
    for position in range(len(data) * 8):
        changed = bytearray(data)
        changed[position // 8] ^= 1 << position % 8
        memory(tier).content[INDEX] = (bytes(changed), 0.0)
        try:
            assert tier.index(KEY) == right
        except Garbled:
            continue
        ignored += 1
    assert ignored <= 16  # a frame has bits that no decoder looks at


def test_where_the_index_was_damaged_objects_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie beside it, and nobody could find by it that they are damaged as well."""
    monkeypatch.setattr(index_update, "DAMAGED_PAUSES", (0.01,))
    tier = remote()
    publish(tier)
    memory(tier).content = {name: (b"damaged", 0.0) for name in memory(tier).content}
    publish(tier)
    assert tier.fetch(KEY, index(tier).entries[0]).manifest.checksum == make()[0].checksum


def _spoilt(data: bytes, times: int) -> bytes:
    return data[: len(data) // 2 + times]


@pytest.mark.parametrize("alike", [True, False])
def test_an_index_that_is_damaged_on_its_way_is_not_written_anew(alike: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice it comes otherwise than it is; what others published stays."""
    monkeypatch.setattr(index_update, "DAMAGED_PAUSES", (0.01, 0.01, 0.01))
    tier = remote()
    before = publish(tier)[0].artifact_id
    read, left = memory(tier).get_versioned, [2]

    def spoilt(name: str, limit: int) -> Versioned | None:
        found = read(name, limit)
        if name != INDEX or found is None or not left[0]:
            return found
        left[0] -= 1
        return found._replace(data=_spoilt(found.data, 0 if alike else left[0]))

    monkeypatch.setattr(memory(tier), "get_versioned", spoilt)
    after = publish(tier, 1)[0].artifact_id
    assert {entry.artifact_id for entry in index(tier).entries} == {before, after}


def test_an_index_that_comes_otherwise_each_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_update, "DAMAGED_PAUSES", (0.01, 0.01))
    tier = remote()
    publish(tier)
    good, read, times = memory(tier).content[INDEX][0], memory(tier).get_versioned, itertools.count()

    def spoilt(name: str, limit: int) -> Versioned | None:
        found = read(name, limit)
        return found._replace(data=_spoilt(found.data, next(times))) if name == INDEX and found is not None else found

    monkeypatch.setattr(memory(tier), "get_versioned", spoilt)
    with pytest.raises(Unreachable, match="comes otherwise each time"):
        publish(tier, 1)
    assert memory(tier).content[INDEX][0] == good


def test_a_newer_index_is_left_alone() -> None:
    tier = remote()
    newer = HOSTILE["a newer format"](tier)
    memory(tier).content[INDEX] = (newer, 0.0)
    with pytest.raises(Garbled, match="newer precast"):
        publish(tier)
    assert memory(tier).content[INDEX][0] == newer


def _swap_targets(tier: Remote) -> None:
    memory(tier).content[INDEX] = (_changed(lambda entry: entry.update(target="cuda:sm_90"))(tier), 0.0)


def _other_blobs(tier: Remote) -> None:
    memory(tier).content[INDEX] = (_changed(lambda entry: entry.update(blobs=entry["blobs"][:-1]))(tier), 0.0)


def _other_checksum(tier: Remote) -> None:
    memory(tier).content[INDEX] = (_changed(lambda entry: entry.update(checksum="ab" * 32))(tier), 0.0)


def _lose_an_object(tier: Remote) -> None:
    memory(tier).content.pop(next(name for name in memory(tier).content if name.startswith(layout.OBJECTS)))


def _flip_a_bit(tier: Remote) -> None:
    name = next(name for name in memory(tier).content if name.startswith(layout.OBJECTS))
    data = memory(tier).content[name][0]
    memory(tier).content[name] = (data[:-1] + bytes([data[-1] ^ 1]), 0.0)


def _a_bomb_as_an_object(tier: Remote) -> None:
    """An object whose digest is right and whose frame holds more than was promised."""

    def change(entry: dict[str, Any]) -> None:
        bomb = compress(bytes(1 << 20))
        memory(tier).content[layout.object_name(digest(bomb))] = (bomb, 0.0)
        entry["blobs"] = [[raw, size, digest(bomb), len(bomb)] for raw, size, _, _ in entry["blobs"]]

    memory(tier).content[INDEX] = (_changed(change)(tier), 0.0)


def _other_content(tier: Remote) -> None:
    """An object of the right size, with other content."""

    def change(entry: dict[str, Any]) -> None:
        def of(size: int) -> bytes:
            data = compress(bytes(size))
            memory(tier).content[layout.object_name(digest(data))] = (data, 0.0)
            return data

        entry["blobs"] = [[raw, size, digest(of(size)), len(of(size))] for raw, size, _, _ in entry["blobs"]]

    memory(tier).content[INDEX] = (_changed(change)(tier), 0.0)


@pytest.mark.parametrize(
    "attack", [_swap_targets, _other_blobs, _other_checksum, _lose_an_object, _flip_a_bit, _a_bomb_as_an_object, _other_content]
)
def test_what_was_tampered_with_does_not_come_in(attack: Callable[[Remote], None]) -> None:
    tier = remote()
    publish(tier)
    attack(tier)
    with pytest.raises(Garbled) as caught:
        tier.fetch(KEY, index(tier).entries[0])
    assert isinstance(caught.value, Lost) == (attack in (_lose_an_object, _flip_a_bit))


def test_damage_of_the_local_store_is_not_published() -> None:
    manifest, _ = make()
    with pytest.raises(Lost, match="precast verify"):
        remote().publish(manifest, lambda blob: b"damaged")
