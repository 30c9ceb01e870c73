"""In which order a store writes, and what is on the disk for good at each moment; what a lease and a record are believed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.guards import canonical
from precast.artifact_store.format.layout import blob_name
from precast.artifact_store.format.msgpack import pack
from precast.artifact_store.local import leases
from precast.artifact_store.tiers import folder as tiers
from precast.artifact_store.tiers.folder import Folder
from tests.artifact_store.sample import make


class Disk:
    """Tells of every sync, rename and new folder below `root`, in order: ("sync", name), ("rename", from, to), ("folder", name)."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.events = root, list[tuple[str, ...]]()
        fsync, replace, mkdir = os.fsync, os.replace, Path.mkdir

        def synced(descriptor: int) -> None:
            self.events.append(("sync", self.name(os.readlink(f"/proc/self/fd/{descriptor}"))))
            fsync(descriptor)

        def renamed(old: Any, new: Any) -> None:
            self.events.append(("rename", self.name(old), self.name(new)))
            replace(old, new)

        def made(path: Path, *args: Any, **kwargs: Any) -> None:
            self.events.append(("folder", self.name(path)))
            mkdir(path, *args, **kwargs)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", renamed)
        monkeypatch.setattr(Path, "mkdir", made)

    def name(self, path: Any) -> str:
        return os.path.relpath(path, self.root)

    def position(self, *event: str) -> int:
        assert event in self.events, f"{event} never happened"
        return self.events.index(event)


def test_everything_is_on_the_disk_before_what_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, blobs = make()
    store, disk = Store.open(tmp_path / "store"), Disk(tmp_path / "store", monkeypatch)
    store.put(manifest, blobs)
    renames = [event for event in disk.events if event[0] == "rename"]
    named = {event[2]: event[1] for event in renames}
    last = f"programs/{manifest.program_key}/{manifest.artifact_id}.msgpack"
    assert renames[-1][2] == last and {blob_name(blob) for blob in manifest.blobs} <= set(named)
    for name in (last, *map(blob_name, manifest.blobs)):
        place = disk.position("rename", named[name], name)
        assert Path(named[name]).parent == Path(name).parent, "a rename within one folder is atomic"
        assert disk.position("sync", named[name]) < place, "the content before its name"
        folder = str(Path(name).parent)
        after = [event for event in disk.events[place:] if event == ("sync", folder)]
        assert after, "the folder after the rename"
        if name != last:
            assert disk.events[place:].index(("sync", folder)) + place < disk.position("rename", named[last], last)


def test_a_new_folder_is_synced_in_the_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, blobs = make()
    store, disk = Store.open(tmp_path / "store"), Disk(tmp_path / "store", monkeypatch)
    store.put(manifest, blobs)
    made = [event[1] for event in disk.events if event[0] == "folder" and event[1] not in (".", "..")]
    assert "objects" in made and f"programs/{manifest.program_key}" in made
    for folder in made:
        above = str(Path(folder).parent)
        place = disk.position("folder", folder)
        assert ("sync", above) == disk.events[place + 1], f"{folder} is not synced in {above}"


def test_a_write_that_is_cut_short_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unbuffered write writes what fits: the rest has to follow."""

    class Short:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Short:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def write(self, data: memoryview) -> int:
            return int(self.file.write(data[:3]))

        def fileno(self) -> int:
            return int(self.file.fileno())

    monkeypatch.setattr(tiers, "open", lambda *args, **kwargs: Short(open(*args, **kwargs)), raising=False)
    Folder(tmp_path).put("name", b"0123456789")
    monkeypatch.undo()
    assert (tmp_path / "name").read_bytes() == b"0123456789"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        Folder(tmp_path).put("folder/name", b"data")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_being_written_has_no_name_yet(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.put("programs/p/a", b"data")
    (tmp_path / f"programs/p/{tiers.TEMPORARY_PREFIX}1-2").write_bytes(b"half")
    assert folder.names("programs") == ["programs/p/a"]


def test_an_artifact_without_one_of_its_blobs_is_not_complete(tmp_path: Path) -> None:
    manifest, blobs = make()
    store = Store.open(tmp_path)
    store.put(manifest, blobs)
    assert len(manifest.blobs) > 1 and store.complete(manifest)
    for blob in manifest.blobs:
        path = store.path(blob_name(blob))
        data = path.read_bytes()
        path.unlink()
        assert not Store.open(tmp_path).complete(manifest)
        Folder(tmp_path).put(blob_name(blob), data)
    assert Store.open(tmp_path).complete(manifest)


def test_a_blob_of_the_right_size_and_another_content_is_not_put(tmp_path: Path) -> None:
    manifest, blobs = make()
    store = Store.open(tmp_path)
    for name, data in blobs.items():
        with pytest.raises(ValueError, match="does not match"):
            store.put(manifest, {**blobs, name: bytes(len(data))})
    assert list(store.manifests()) == []


def test_a_record_whose_content_was_changed_is_none(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    store.put_record("tuning", "one", {"way": "fast"})
    path = store.path("tuning/one.msgpack")
    data = path.read_bytes()
    assert store.record("tuning", "one") == {"way": "fast"} and data.count(b"fast") == 1
    path.write_bytes(data.replace(b"fast", b"slow"))
    assert store.record("tuning", "one") is None and not path.exists()


@pytest.mark.parametrize("text", ["2", "7", "0"])
def test_a_store_of_another_layout_is_not_written(tmp_path: Path, text: str) -> None:
    store = Store.open(tmp_path)
    store.put(*make())
    store.path("format").write_text(f"{text}\n")
    with pytest.raises(StoreError, match="layout version"):
        Store.open(tmp_path, strict=True)
    with pytest.raises(StoreError, match="layout version"):
        store.put(*make(1))


def holder(**changes: Any) -> dict[str, Any]:
    own = {"token": "ab", "pid": os.getpid(), "place": leases._place(), "started": leases._started(os.getpid())}
    return {**own, **changes}


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({}, False),
        ({"pid": 2**22 + 5}, True),
        ({"pid": 2**22 + 5, "place": "another machine"}, False),
        ({"started": "1"}, True),
        ({"started": "1", "place": "another machine"}, False),
        ({"pid": "none"}, False),
    ],
    ids=str,
)
def test_who_is_dead(changes: dict[str, Any], dead: bool) -> None:
    """A process of this machine that is gone, or whose number another one has since; of another machine nothing is known."""
    assert leases.is_dead(holder(**changes)) is dead


def test_only_the_own_lease_is_given_back(tmp_path: Path) -> None:
    """Who was taken for dead finds another one's file at its end."""
    with leases.acquire(tmp_path / "leases", "one") as lease:
        assert lease.held
        lease.path.write_bytes(pack(holder(token="another")))
    assert leases._holder(lease.path)["token"] == "another"
    with leases.acquire(tmp_path / "leases", "two") as lease:
        pass
    assert not lease.path.exists()


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0.0, -0.0), ("1", 1), (None, "None"), ({"a": 1}, {"a": True}), ((1, 2), (1, "2")), ((1,), 1), (b"a", "a")],
    ids=repr,
)
def test_constants_that_differ_have_different_texts(one: Any, other: Any) -> None:
    assert canonical(one) != canonical(other)
    assert canonical({"a": 1, "b": (1, 2)}) == canonical({"b": [1, 2], "a": 1})
