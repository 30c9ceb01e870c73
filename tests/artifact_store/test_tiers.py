"""What the store promises, over each tier: the folder, and one that is no folder, as a remote one would not be."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import Untrusted
from precast.artifact_store.format.msgpack import digest, pack, unpack
from precast.artifact_store.format.origin import FOLDER, PROCESS
from precast.artifact_store.tiers.folder import Folder
from precast.artifact_store.tiers.tier import Tier
from precast.artifact_store.trust.trusted import LOCAL, Policy
from tests.artifact_store.memory_tier import KIND, Memory
from tests.artifact_store.sample import complete, make

KEY = "model-0123abcd"
TRUSTING = Policy(frozenset({FOLDER, PROCESS, KIND}))


@pytest.fixture(params=[Folder, Memory])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Tier:
    made: Tier = request.param(tmp_path)
    return made


@pytest.fixture
def open_store(tier: Tier, tmp_path: Path) -> Callable[..., Store]:
    """A store object over the tier, new each time, as each process has one."""
    return lambda **options: Store(tmp_path, tier=tier, policy=TRUSTING, **options)


def _tamper(tier: Tier, name: str, change: Callable[[bytes], bytes]) -> None:
    data = tier.get(name)
    assert data is not None
    tier.put(name, change(data))


def _flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


DAMAGE: list[Callable[[bytes], bytes]] = [_flip, lambda data: data[:-7], lambda data: b"", lambda data: b"\x89PNG not ours at all"]


def test_what_is_put_is_there_for_others(open_store: Callable[..., Store]) -> None:
    assert open_store().programs() == [] == open_store().variants(KEY) and open_store().get("0" * 64) is None
    first, second = open_store().put(*make(0)), open_store().put(*make(1))
    store = open_store()
    assert store.programs() == [KEY]
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == sorted([first, second])
    assert store.manifest_names(KEY) == [layout.manifest_name(KEY, name) for name in sorted([first, second])]
    found = store.get(first)
    assert found is not None and store.get(first, "other") is None
    assert store.complete(found) and complete(store, found)
    library = found.graphs["forward"].library
    path = store.blob_path(library)
    assert path is not None and path.read_bytes() == store.blob(library)
    assert store.made_at(found) > 1.7e9 and store.why_absent(library) == "" and store.why_unread(KEY) == ""


def test_what_is_removed_is_gone(open_store: Callable[..., Store]) -> None:
    store = open_store()
    first, second = store.put(*make(0)), store.put(*make(1))
    found = store.get(first)
    assert store.remove(first) and not store.remove(first)
    assert [manifest.artifact_id for manifest in open_store().variants(KEY)] == [second]
    assert found is not None
    with pytest.raises(OSError):
        store.made_at(found)


def test_a_change_of_a_programs_artifacts_shows(open_store: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    assert store.changed(KEY) == 0
    first = store.put(*make(0))
    put = store.changed(KEY)
    assert put and put == open_store().changed(KEY)
    store.remove(first)
    assert (store.changed(KEY) or 0) >= put
    assert Store(Path("/"), problem="no store").changed(KEY) is None


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_manifest_is_a_logged_miss(
    open_store: Callable[..., Store], tier: Tier, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = open_store().put(*make(0)), open_store().put(*make(1))
    _tamper(tier, layout.manifest_name(KEY, first), damage)
    with caplog.at_level(logging.INFO, "precast.store"):
        assert [manifest.artifact_id for manifest in open_store().variants(KEY)] == [second]
        assert open_store().get(first) is None
    assert first[:12] in caplog.text and "moved to quarantine/" in caplog.text
    assert tier.get(layout.manifest_name(KEY, first)) is None
    open_store().put(*make(0))
    assert len(open_store().variants(KEY)) == 2


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_blob_is_never_given_out(open_store: Callable[..., Store], tier: Tier, damage: Callable[[bytes], bytes]) -> None:
    found = open_store().get(open_store().put(*make(0)))
    assert found is not None
    library = found.graphs["forward"].library
    seen = open_store()
    trusted = seen.trust(found).part(lambda manifest: manifest.graphs["forward"].library)
    assert seen.trusted_file(trusted) is not None
    _tamper(tier, layout.blob_name(library), damage)
    for store in (seen, open_store()):
        assert store.blob_path(library) is None and store.blob(library) is None and not store.complete(found)
        assert store.trusted_file(trusted) is None and store.trusted_bytes(trusted) is None
        assert store.why_absent(library) == "MISSING"
    open_store().put(*make(0))
    assert open_store().complete(found)


def test_a_manifest_under_another_program_or_name_is_refused(open_store: Callable[..., Store], tier: Tier) -> None:
    first, second = open_store().put(*make(0)), open_store().put(*make(1))
    data = tier.get(layout.manifest_name(KEY, first))
    assert data is not None
    tier.put(layout.manifest_name("other", first), data)
    tier.put(layout.manifest_name(KEY, second), data)
    assert open_store().variants("other") == []
    assert [manifest.artifact_id for manifest in open_store().variants(KEY)] == [first]


def test_a_newer_format_is_missed_and_left_alone(open_store: Callable[..., Store], tier: Tier) -> None:
    name = layout.manifest_name(KEY, open_store().put(*make(0)))

    def newer(data: bytes) -> bytes:
        outer = list(unpack(data))
        return pack([outer[0], 2, *outer[2:], "more"])

    _tamper(tier, name, newer)
    before = tier.get(name)
    assert open_store().variants(KEY) == [] and tier.get(name) == before


def test_opened_read_only(open_store: Callable[..., Store], tier: Tier) -> None:
    first = open_store().put(*make(0))
    store = open_store(readonly=True)
    assert store.get(first) is not None
    for write in (
        lambda: store.put(*make(1)),
        lambda: store.remove(first),
        lambda: store.put_record("tuning", "x", {}),
        store.check_writable,
    ):
        with pytest.raises(StoreError, match="opened read-only"):
            write()
    _tamper(tier, layout.manifest_name(KEY, first), _flip)
    assert store.variants(KEY) == [] and tier.get(layout.manifest_name(KEY, first)) is not None


def test_records(open_store: Callable[..., Store], tier: Tier) -> None:
    store = open_store()
    store.put_record("tuning", "mm", {"choice": "onednn", "times": [1.5, 2.0]})
    library = b"\x7fELF dispatcher"
    name = digest(library)
    store.put_record("native", "cp311", {"library": name, "blobs": [name]}, {name: library})
    assert open_store().record("tuning", "mm") == {"choice": "onednn", "times": (1.5, 2.0)}
    assert open_store().record_names("native") == ["cp311"]
    record = open_store().trusted_record("native", "cp311")
    assert record is not None
    file = open_store().trusted_file(record.part(lambda record: str(record["library"])))
    assert file is not None and file.content.read_bytes() == library and file.digest == name
    _tamper(tier, "tuning/mm.msgpack", _flip)
    assert open_store().record("tuning", "mm") is None and tier.get("tuning/mm.msgpack") is None


@pytest.mark.parametrize("policy", [LOCAL, TRUSTING])
def test_the_policy_decides_by_the_tier_what_may_execute(
    open_store: Callable[..., Store], tier: Tier, tmp_path: Path, policy: Policy
) -> None:
    name = digest(b"\x7fELF")
    open_store().put_record("native", "cp311", {"library": name, "blobs": [name]}, {name: b"\x7fELF"})
    open_store().put(*make(0))
    store = Store(tmp_path, tier=tier, policy=policy)
    (manifest,) = store.variants(KEY)  # what is only shown needs no trust
    if tier.kind in policy.kinds:
        assert store.trust(manifest).origin.name == layout.manifest_name(KEY, manifest.artifact_id)
        assert store.trusted_record("native", "cp311") is not None
        return
    for ask in (lambda: store.trust(manifest), lambda: store.trusted_record("native", "cp311")):
        with pytest.raises(Untrusted, match=f"memory://tier.* may not become code here: its origin is of kind '{KIND}'"):
            ask()


def test_a_tier_that_does_not_answer_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tier = Memory(tmp_path)
    store = Store(tmp_path, tier=tier, policy=TRUSTING)
    first = store.put(*make(0))
    found = store.get(first)
    assert found is not None
    tier.broken = True
    with caplog.at_level(logging.INFO, "precast.store"):
        assert store.programs() == [] == store.variants(KEY) and store.get(first, KEY) is None and store.record("tuning", "mm") is None
        assert not store.complete(found) and store.changed(KEY) is None
    assert "the tier does not answer" in caplog.text
    assert "the tier does not answer" in store.try_put(*make(1)) and "the tier does not answer" in store.why_unread(KEY)
    tier.broken = False
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == [first]


def test_how_often_a_tier_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a warm start costs: one list, one read a manifest, and a stamp and a read a blob, which is not read again while it stays."""
    tier = Memory(tmp_path)
    first = Store(tmp_path, tier=tier).put(*make(0))
    asked: list[str] = []
    for verb in ("get", "names", "listed", "stamp", "file"):
        real = getattr(tier, verb)
        monkeypatch.setattr(tier, verb, lambda name, verb=verb, real=real: asked.append(verb) or real(name))

    def counted(ask: Callable[[], object]) -> list[str]:
        asked.clear()
        assert ask() is not None
        return list(asked)

    store = Store(tmp_path, tier=tier, policy=TRUSTING)
    assert counted(lambda: store.changed(KEY)) == ["stamp"]
    assert counted(lambda: store.trusted_variants(KEY)) == ["listed", "get"]
    assert counted(lambda: store.get(first, KEY)) == ["get"]
    (document,) = store.trusted_variants(KEY)
    library = document.part(lambda manifest: manifest.graphs["forward"].library)
    assert counted(lambda: store.trusted_file(library)) == ["stamp", "get", "file"]
    assert counted(lambda: store.trusted_file(library)) == ["stamp", "file"]
