"""verify finds every kind of damage; --repair leaves a store that is sound and serves what was sound before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.layout import blob_name, manifest_name
from precast.artifact_store.format.msgpack import digest, pack, unpack
from precast.artifact_store.maintenance import verify as verification
from precast.artifact_store.maintenance.scan import files
from precast.artifact_store.maintenance.verify import Problem, Verified, verify
from tests.artifact_store.sample import complete, fill, make, snapshot

KEY = "model-0123abcd"


def _library(store: Store, artifact_id: str) -> Path:
    manifest = store.get(artifact_id)
    assert manifest is not None
    return store.path(blob_name(manifest.graphs["forward"].library))


def _overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)


def _flip_blob(store: Store, victim: str) -> None:
    path = _library(store, victim)
    _overwrite(path, path.read_bytes()[::-1])


def _drop_blob(store: Store, victim: str) -> None:
    _library(store, victim).unlink()


def _cut_manifest(store: Store, victim: str) -> None:
    path = store.path(manifest_name(KEY, victim))
    path.write_bytes(path.read_bytes()[:-1])


def _empty_manifest(store: Store, victim: str) -> None:
    store.path(manifest_name(KEY, victim)).write_bytes(b"")


def _misplaced_manifest(store: Store, victim: str) -> None:
    path = store.path(manifest_name("elsewhere", victim))
    path.parent.mkdir()
    store.path(manifest_name(KEY, victim)).rename(path)


def _foreign_object(store: Store, victim: str) -> None:
    (store.root / "objects" / "zz").mkdir()
    (store.root / "objects" / "zz" / "notes.txt").write_text("hello")


def _old_orphan(store: Store, victim: str) -> None:
    path = store.path(blob_name(digest(b"orphan")))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"orphan")
    os.utime(path, (0, 0))


def _old_temporary(store: Store, victim: str) -> None:
    path = store.root / "programs" / KEY / ".tmp-77-abc"
    path.write_bytes(b"half")
    os.utime(path, (0, 0))


def _cut_record(store: Store, victim: str) -> None:
    store.put_record("tuning", "mm", {"choice": "mkl"})
    path = store.path("tuning/mm.msgpack")
    path.write_bytes(path.read_bytes()[:-1])


def _record_without_its_blob(store: Store, victim: str) -> None:
    store.put_record("native", "cp311", {"blobs": ["0" * 64]})


def _open_to_others(store: Store, victim: str) -> None:
    store.root.chmod(0o777)


def _no_format_file(store: Store, victim: str) -> None:
    (store.root / "format").unlink()


# damage, kinds of problems, artifacts that are served afterwards (of 2)
CASES: list[tuple[Callable[[Store, str], None], set[str], int]] = [
    (_flip_blob, {"damaged", "incomplete"}, 1),
    (_drop_blob, {"incomplete"}, 1),
    (_cut_manifest, {"damaged"}, 1),
    (_empty_manifest, {"damaged"}, 1),
    (_misplaced_manifest, {"damaged"}, 1),
    (_foreign_object, {"foreign"}, 2),
    (_old_orphan, {"leftover"}, 2),
    (_old_temporary, {"leftover"}, 2),
    (_cut_record, {"damaged"}, 2),
    (_record_without_its_blob, {"incomplete"}, 2),
    (_open_to_others, {"permissions"}, 2),
    (_no_format_file, {"format"}, 2),
]


@pytest.mark.parametrize(("damage", "kinds", "left"), CASES)
def test_damage_is_found_and_repaired(tmp_path: Path, damage: Callable[[Store, str], None], kinds: set[str], left: int) -> None:
    store, (victim, _) = fill(tmp_path / "s", 2)
    assert verify(store).problems == []
    damage(store, victim)
    before = snapshot(store.root)
    found = verify(store)
    assert {problem.kind for problem in found.problems} == kinds and not found.sound
    assert snapshot(store.root) == before  # looking changes nothing
    repaired = verify(store, repair=True)
    assert repaired.sound and {problem.kind for problem in repaired.problems} == kinds and repaired.set_aside == 2 - left
    assert verify(store).problems == []
    served = Store.open(store.root, strict=True).variants(KEY)
    assert len(served) == left and all(complete(store, manifest) for manifest in served)


def test_a_newer_format_is_counted_and_left_alone(tmp_path: Path) -> None:
    store, (first, _) = fill(tmp_path / "s", 2)
    path = store.path(manifest_name(KEY, first))
    outer = list(unpack(path.read_bytes()))
    path.write_bytes(pack([outer[0], 9, *outer[2:]]))
    report = verify(store, repair=True)
    assert report.newer == 1 and report.problems == [] and path.exists()


def test_what_is_stored_while_it_looks_is_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blobs of a manifest that came after the blobs were looked at."""
    store, _ = fill(tmp_path / "s")
    look = verification._Look.at_manifests

    def at_manifests(self: verification._Look) -> None:
        store.put(*make(7))
        store.put_record("tuning", "late", {"blobs": [digest(b"late")]}, {digest(b"late"): b"late"})
        look(self)

    monkeypatch.setattr(verification._Look, "at_manifests", at_manifests)
    report = verify(store, repair=True)
    assert report.problems == [] and report.manifests == 2


def test_what_is_pruned_while_it_looks_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blobs that went before they were read, and the manifest afterwards; and both after the manifest was read."""
    store, ids = fill(tmp_path / "s", 2)
    read = verification.read_file
    blobs, manifests = files(store.root / "objects"), [store.path(manifest_name(KEY, name)) for name in sorted(ids)]

    def read_file(path: Path) -> bytes:
        if path == blobs[0]:
            for blob in blobs:
                blob.unlink()
        if path == manifests[0]:
            manifests[0].unlink()
            raise FileNotFoundError(2, "pruned", str(path))
        data = read(path)
        if path == manifests[1]:
            manifests[1].unlink()
        return data

    monkeypatch.setattr(verification, "read_file", read_file)
    report = verify(store)
    assert report.problems == [] and report.manifests == 1 and report.blobs == 0


@pytest.mark.parametrize(
    ("repaired", "sound"),
    [((), True), ((True,), True), ((False,), False), ((True, False), False), ((False, True), False), ((True, True), True)],
)
def test_one_problem_that_stays_is_enough(repaired: tuple[bool, ...], sound: bool) -> None:
    problems = [Problem(f"objects/{n}", "damaged", "", done) for n, done in enumerate(repaired)]
    assert Verified(problems=problems).sound is Verified(problems=problems).good is Verified(quarantined=problems).good is sound


def test_a_store_that_does_not_exist_is_sound(tmp_path: Path) -> None:
    assert verify(Store.open(tmp_path / "none")).sound


def test_repair_needs_a_writable_store(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s")
    with pytest.raises(StoreError, match="cannot be repaired"):
        verify(Store.open(store.root, readonly=True), repair=True)
