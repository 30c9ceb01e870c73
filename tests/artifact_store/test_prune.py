"""Prune: which artifacts go under which options (a table), and what happens on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from precast.artifact_store import Store, StoreError, Versions
from precast.artifact_store.format.layout import blob_name, manifest_name
from precast.artifact_store.format.msgpack import digest, pack, unpack
from precast.artifact_store.maintenance.index import Entry
from precast.artifact_store.maintenance.prune import Policy, plan, prune, total_size
from precast.artifact_store.maintenance.scan import files
from precast.artifact_store.tiers.folder import Folder
from tests.artifact_store.sample import complete, fill, make

NOW = 1_000_000.0
DAY = 86400.0
KEY = "model-0123abcd"


def _entry(name: str, program: str, target: str, made: float, used: float, size: int, torch: str = "2.13", shared: int = 0) -> Entry:
    blobs = {digest(name.encode()): size - shared, digest(b"shared"): shared} if shared else {digest(name.encode()): size}
    versions = Versions("1", torch, None, "")
    return Entry(name, program, program, target, versions, 0, blobs, 1, NOW - made * DAY, NOW - used * DAY, 1)


# name, program, target, days since made, days since used, bytes
ENTRIES = (
    _entry("a1", "a", "cpu:x86-64-v3", 40, 1, 100),
    _entry("a2", "a", "cpu:x86-64-v4", 30, 20, 100, torch="2.12"),
    _entry("a3", "a", "cuda:sm_80", 5, 5, 100),
    _entry("b1", "b", "cuda:sm_90", 50, 45, 100, torch="2.12"),
    _entry("b2", "b", "cpu:x86-64-v3", 2, 2, 100),
)


def _old_torch(versions: Versions) -> str:
    return "" if versions.torch == "2.13" else "old torch"


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        (Policy(), ""),
        (Policy(older_than=35 * DAY), "a1 b1"),
        (Policy(older_than=60 * DAY), ""),
        (Policy(unused_for=10 * DAY), "a2 b1"),
        (Policy(unused_for=0), "a1 a2 a3 b1 b2"),
        (Policy(older_than=35 * DAY, unused_for=10 * DAY), "b1"),
        (Policy(target="cuda:sm_80"), "a3"),
        (Policy(target="cuda:*"), "a3 b1"),
        (Policy(target="cuda:*", unused_for=10 * DAY), "b1"),
        (Policy(target="nothing"), ""),
        (Policy(stale=_old_torch), "a2 b1"),
        (Policy(stale=_old_torch, target="cpu:*"), "a2"),
        (Policy(keep_last=1), "a2 a3 b1"),
        (Policy(keep_last=2), "a2"),
        (Policy(keep_last=3), ""),
        (Policy(keep_last=1, unused_for=0), "a2 a3 b1"),
        (Policy(keep_last=2, target="cuda:*"), ""),
        (Policy(max_size=500), ""),
        (Policy(max_size=499), "b1"),
        (Policy(max_size=300), "b1 a2"),
        (Policy(max_size=0), "b1 a2 a3 b2 a1"),
        (Policy(max_size=300, target="cuda:sm_80"), "a3 b1"),
        (Policy(max_size=0, keep_last=1), "b1 a2 a3"),
    ],
)
def test_which_artifacts_go(policy: Policy, goes: str) -> None:
    assert " ".join(removal.entry.artifact_id for removal in plan(ENTRIES, policy, NOW)) == goes
    assert all(removal.reason for removal in plan(ENTRIES, policy, NOW))


def test_a_shared_blob_counts_once_and_goes_with_its_last_user() -> None:
    entries = [_entry(f"e{i}", "e", "t", 1, i, 100, shared=60) for i in range(3)]
    assert total_size(entries) == 180
    assert [removal.entry.artifact_id for removal in plan(entries, Policy(max_size=140), NOW)] == ["e2"]
    assert [removal.entry.artifact_id for removal in plan(entries, Policy(max_size=99), NOW)] == ["e2", "e1", "e0"]


def test_removes_artifacts_with_their_blobs_at_once(tmp_path: Path) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    for _ in range(3):
        store.used(second)
    os.utime(store.path(manifest_name(KEY, first)), (0, 0))
    done = prune(store, Policy(keep_last=1))
    assert [removal.entry.artifact_id for removal in done.removed] == [first] and done.kept == 1 and done.freed > 64
    (left,) = store.variants(KEY)
    assert left.artifact_id == second and complete(store, left)
    assert len(files(store.root / "objects")) == 3


def test_a_dry_run_changes_nothing_and_tells_the_same(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s", 3)
    would = prune(store, Policy(max_size=0), dry_run=True)
    assert len(store.variants(KEY)) == 3
    done = prune(store, Policy(max_size=0))
    assert (would.freed, [r.entry.artifact_id for r in would.removed]) == (done.freed, [r.entry.artifact_id for r in done.removed])
    assert store.variants(KEY) == [] and files(store.root / "objects") == []


def test_leftovers_go_when_they_are_old(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    orphan = store.path(blob_name(digest(b"orphan")))
    orphan.parent.mkdir(exist_ok=True)
    for path in (orphan, store.root / "objects" / ".tmp-1-a", store.root / "programs" / KEY / ".tmp-2-b", store.root / "leases" / "dead"):
        path.write_bytes(b"orphan")
        assert prune(store, Policy()).leftovers == ()  # a writer may be at work
        os.utime(path, (time.time() - 7200,) * 2)
        assert [name for name, _ in prune(store, Policy()).leftovers] == [path.relative_to(store.root).as_posix()]
        assert not path.exists()
    manifest = store.get(first)
    assert manifest is not None and complete(store, manifest)


def test_a_prune_between_blobs_and_manifest_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer finds a blob that is there already, the prune takes it with its last artifact, and then comes the new manifest."""
    store, (first,) = fill(tmp_path / "s")
    whole = Folder.put

    def put(self: Folder, name: str, data: bytes, mode: int = 0o600) -> None:
        if name.startswith("programs/"):
            prune(Store.open(store.root), Policy(max_size=0))
        whole(self, name, data, mode)

    monkeypatch.setattr(Folder, "put", put)
    second = store.put(*make(1))
    (left,) = store.variants(KEY)
    assert left.artifact_id == second != first and complete(store, left)


def test_blobs_of_records_stay(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s")
    library = b"dispatcher"
    store.put_record("native", "cp311", {"blobs": [digest(library)]}, {digest(library): library})
    os.utime(store.path(blob_name(digest(library))), (0, 0))
    prune(store, Policy(max_size=0))
    assert store.blob(digest(library)) == library and store.variants(KEY) == []


def test_blobs_of_a_newer_format_stay(tmp_path: Path) -> None:
    store, (first, _) = fill(tmp_path / "s", 2)
    path = store.path(manifest_name(KEY, first))
    outer = list(unpack(path.read_bytes()))
    path.write_bytes(pack([outer[0], 2, *outer[2:]]))
    for blob in files(store.root / "objects"):
        os.utime(blob, (0, 0))
    before = files(store.root / "objects")
    assert prune(store, Policy()).leftovers == () and files(store.root / "objects") == before
    prune(store, Policy(max_size=0))
    assert path.exists() and files(store.root / "objects") == before


def test_a_store_opened_read_only_is_not_pruned(tmp_path: Path) -> None:
    filled, _ = fill(tmp_path / "s", 2)
    store = Store.open(filled.root, readonly=True)
    with pytest.raises(StoreError, match="nothing was pruned"):
        prune(store, Policy(max_size=0))
    assert len(prune(store, Policy(max_size=0), dry_run=True).removed) == 2
    assert len(store.variants(KEY)) == 2


def test_what_is_just_as_old_as_the_limit_stays() -> None:
    for entry in ENTRIES:
        age, idle = NOW - entry.created, NOW - entry.last_use
        for policy, goes in ((Policy(older_than=age), False), (Policy(older_than=age - 1), True)):
            assert (entry.artifact_id in {r.entry.artifact_id for r in plan(ENTRIES, policy, NOW)}) is goes
        for policy, goes in ((Policy(unused_for=idle), False), (Policy(unused_for=idle - 1), True)):
            assert (entry.artifact_id in {r.entry.artifact_id for r in plan(ENTRIES, policy, NOW)}) is goes


def test_a_blob_that_a_record_names_outlives_its_artifact(tmp_path: Path) -> None:
    store, _ = fill(tmp_path)
    (manifest,) = store.manifests()
    kept = sorted(manifest.blobs)[0]
    store.put_record("tuning", "one", {"blobs": [kept]})
    assert len(prune(store, Policy(target="*")).removed) == 1
    assert store.blob(kept) is not None and not any(store.blob(blob) for blob in manifest.blobs if blob != kept)
