"""The store on a healthy disk, on a damaged one, and where it may not write."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from precast.artifact_store import Manifest, Store, StoreError
from precast.artifact_store.format import layout
from precast.artifact_store.format.msgpack import digest, pack, unpack
from precast.artifact_store.place import default_root
from tests.artifact_store.sample import complete, fill, make, snapshot

KEY = "model-0123abcd"


def test_put_then_get(tmp_path: Path) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    assert store.programs() == [KEY]
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == sorted([first, second])
    found = store.get(first)
    assert found is not None and found.artifact_id == first and complete(store, found)
    assert store.get(first, KEY) is not None
    assert store.get(first, "other") is None
    assert store.get("0" * 64) is None
    assert store.variants("other") == []
    path = store.blob_path(found.graphs["forward"].library)
    assert path is not None and path.read_bytes() == store.blob(found.graphs["forward"].library)


def test_an_empty_store_is_made_on_first_write_only(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "deep" / "s", strict=True)
    assert store.programs() == [] and store.variants(KEY) == [] and store.get("0" * 64) is None and store.blob("0" * 64) is None
    assert not (tmp_path / "deep").exists()
    store.put(*make())
    assert (tmp_path / "deep" / "s" / "format").read_text() == "1\n"
    assert (tmp_path / "deep" / "s" / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


def test_a_store_is_private_and_blobs_are_read_only(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s")
    folders = [path for path in (store.root, *store.root.rglob("*")) if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    blobs = [path for path in (store.root / "objects").rglob("*") if path.is_file()]
    assert len(blobs) == 3 and {stat.S_IMODE(path.stat().st_mode) for path in blobs} == {0o400}


def test_equal_blobs_are_kept_once_and_their_time_is_renewed(tmp_path: Path) -> None:
    store, (first, _) = fill(tmp_path / "s", 2)
    assert len(list((store.root / "objects").glob("*/*"))) == 4  # two libraries, and two sources that both share
    manifest = store.get(first)
    assert manifest is not None
    shared = store.path(layout.blob_name(manifest.graphs["forward"].kernel_source))
    os.utime(shared, (0, 0))
    store.put(*make(2))
    assert shared.stat().st_mtime > time.time() - 60


def test_remove(tmp_path: Path) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    assert store.remove(first) and not store.remove(first)
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == [second]


def test_a_moved_or_copied_store_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = fill(tmp_path / "a", 2)
    shutil.copytree(store.root, tmp_path / "copy")
    shutil.move(store.root, tmp_path / "moved")
    for name in ("copy", "moved"):
        monkeypatch.chdir(tmp_path)
        relative = Store.open(name, strict=True)
        monkeypatch.chdir("/")
        assert sorted(ids) == [manifest.artifact_id for manifest in relative.variants(KEY)]
        assert all(complete(relative, manifest) for manifest in relative.variants(KEY))


def test_nothing_of_the_machine_is_in_what_is_shared(tmp_path: Path) -> None:
    fill(tmp_path / "one", 2)
    fill(tmp_path / "two", 2)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "two")


def test_precedence_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "env"))
    assert default_root(tmp_path / "argument") == tmp_path / "argument"
    assert default_root() == tmp_path / "env"
    assert default_root(f"file://{tmp_path}/url") == tmp_path / "url"
    assert default_root("~/x") == Path.home() / "x"
    monkeypatch.delenv("PRECAST_STORE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_root().is_relative_to(tmp_path) or os.name != "posix"
    with pytest.raises(StoreError, match="copy a remote store into a folder"):
        default_root("s3://bucket/x")
    with pytest.raises(StoreError, match="an empty name; name a folder"):
        default_root("")


# -- damage


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.chmod(0o600)
    path.write_bytes(bytes(data))


def _truncate(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-7])


def _empty(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    path.chmod(0o600)
    path.write_bytes(b"\x89PNG not ours at all")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: list[Callable[[Path], None]] = [_flip, _truncate, _empty, _foreign, _folder]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_manifest_is_a_logged_miss(tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    path = store.path(layout.manifest_name(KEY, first))
    damage(path)
    with caplog.at_level(logging.INFO, "precast.store"):
        assert [manifest.artifact_id for manifest in store.variants(KEY)] == [second]
        assert store.get(first) is None
    assert first[:12] in caplog.text and "miss" in caplog.text
    if damage is not _folder:
        assert not path.exists() and len(list((store.root / "quarantine").iterdir())) == 1
        store.put(*make(0))  # compiled anew: served again
        assert len(store.variants(KEY)) == 2


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_blob_is_never_given_out(tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture) -> None:
    store, (first,) = fill(tmp_path / "s")
    manifest = store.get(first)
    assert manifest is not None
    library = manifest.graphs["forward"].library
    damage(store.path(layout.blob_name(library)))
    with caplog.at_level(logging.INFO, "precast.store"):
        assert store.blob_path(library) is None
        assert store.blob(library) is None
    assert library[:12] in caplog.text
    if damage is not _folder:
        store.put(*make(0))
        assert store.blob_path(library) is not None


def test_a_blob_that_changes_after_a_check_is_checked_again(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    manifest = store.get(first)
    assert manifest is not None
    library = manifest.graphs["forward"].library
    assert store.blob_path(library) is not None
    _flip(store.path(layout.blob_name(library)))
    assert store.blob_path(library) is None


def test_put_replaces_a_damaged_blob_of_the_same_size(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    manifest = store.get(first)
    assert manifest is not None
    _flip(store.path(layout.blob_name(manifest.graphs["forward"].library)))
    store.put(*make(0))
    assert complete(store, manifest)


def test_a_manifest_under_another_program_or_name_is_refused(tmp_path: Path) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    lies = store.path(layout.manifest_name("other", first))
    lies.parent.mkdir()
    shutil.copy(store.path(layout.manifest_name(KEY, first)), lies)
    shutil.copy(store.path(layout.manifest_name(KEY, first)), store.path(layout.manifest_name(KEY, second)))
    assert store.variants("other") == []
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == [first]


def test_a_newer_format_is_missed_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, (first,) = fill(tmp_path / "s")
    path = store.path(layout.manifest_name(KEY, first))
    outer = list(unpack(path.read_bytes()))
    path.write_bytes(pack([outer[0], 2, *outer[2:], "more"]))
    before = path.read_bytes()
    with caplog.at_level(logging.INFO, "precast.store"):
        assert store.variants(KEY) == []
    assert "a newer precast wrote it" in caplog.text and path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [("2\n", "upgrade precast"), ("hello\n", "not a precast store"), ("\xff\xfe", "cannot be read"), ("", "not a precast store")],
)
def test_a_store_of_another_layout_is_refused_or_empty(tmp_path: Path, text: str, words: str) -> None:
    store, (first,) = fill(tmp_path / "s")
    (store.root / "format").write_text(text, "latin-1")
    with pytest.raises(StoreError, match=words):
        Store.open(store.root, strict=True)
    broken = Store.open(store.root)
    assert words in broken.problem
    assert broken.programs() == [] and broken.variants(KEY) == [] and broken.get(first) is None
    assert broken.try_put(*make(3))
    with pytest.raises(StoreError):
        broken.put(*make(3))


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="a file is in the way"):
        Store.open(tmp_path / "file", strict=True)
    assert "a file is in the way" in Store.open(tmp_path / "file").try_put(*make())
    store = Store.open(tmp_path / "s")
    store.root.mkdir()
    (store.root / "objects").write_text("x")
    assert f"File exists ({store.root / 'objects'})" in store.try_put(*make())


def test_other_files_in_the_store_do_not_matter(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    (store.root / "programs" / "README").write_text("hello")
    (store.root / "programs" / KEY / "notes.txt").write_text("hello")
    (store.root / "programs" / KEY / ".tmp-1-abc").write_text("half")
    (store.root / "programs" / KEY / "short.msgpack").write_bytes(b"zz")
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == [first]
    assert store.programs() == [KEY]


# -- what put refuses


def test_put_checks_what_it_is_given(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    manifest, blobs = make()
    name = next(iter(manifest.blobs))
    for wrong in ({k: v for k, v in blobs.items() if k != name}, {**blobs, name: b"other"}):
        with pytest.raises(ValueError, match="needs blob"):
            store.put(manifest, wrong)
    assert store.programs() == []


def test_opened_read_only(tmp_path: Path) -> None:
    filled, (first,) = fill(tmp_path / "s")
    before = snapshot(filled.root)
    store = Store.open(filled.root, readonly=True)
    assert store.get(first) is not None
    with pytest.raises(StoreError, match="opened read-only"):
        store.put(*make(1))
    with pytest.raises(StoreError):
        store.remove(first)
    store.used(first)
    with store.lease(first) as lease:
        assert not lease.held
    _flip(store.path(layout.manifest_name(KEY, first)))
    assert store.variants(KEY) == []
    assert snapshot(filled.root).keys() == before.keys()  # a damaged entry is ignored and stays where it is


@pytest.fixture
def foreign_store() -> Iterator[Path]:
    """A filled store that this process's other self (user 65534 when we are root) may read and not write."""
    root = Path(tempfile.mkdtemp(prefix="precast-test-"))
    fill(root / "s", 2)
    for path in (root, root / "s", *(root / "s").rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root / "s"
    for path in (root, root / "s", *(root / "s").rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    shutil.rmtree(root)


def test_a_folder_that_cannot_be_written(foreign_store: Path) -> None:
    """In a forked child, since root may write anywhere and has to become somebody else first."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            store = Store.open(foreign_store)
            found: list[Manifest] = store.variants(KEY)
            assert len(found) == 2 and complete(store, found[0])
            assert store.blob_path(found[0].graphs["forward"].library) is not None
            assert store.try_put(*make(7))
            store.used(found[0].artifact_id)
            with store.lease("x" * 8) as lease:
                assert not lease.held
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert len(Store.open(foreign_store).variants(KEY)) == 2


def test_what_cannot_be_read_is_told(foreign_store: Path, tmp_path: Path) -> None:
    store = Store.open(foreign_store)
    assert store.why_unread(KEY) == store.why_unread("unknown") == Store.open(tmp_path / "none").why_unread(KEY) == ""
    for name in (store.manifest_names(KEY)[1], f"programs/{KEY}", "programs", "objects", "format"):
        path = store.path(name)
        mode = path.stat().st_mode
        path.chmod(0)
        said = _as_somebody_else(lambda: Store.open(foreign_store).why_unread(KEY))
        path.chmod(mode)
        assert path.name in said and "Permission denied" in said


def _as_somebody_else(ask: Callable[[], str]) -> str:
    """What `ask` answers in a forked child, since root may read everything."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            os.write(writer, ask().encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as file:
        return file.read().decode()


@pytest.mark.parametrize("readonly", [False, True])
def test_damage_is_told_once_and_as_it_was_dealt_with(tmp_path: Path, readonly: bool, caplog: pytest.LogCaptureFixture) -> None:
    filled, (first,) = fill(tmp_path / "s")
    manifest = filled.get(first)
    assert manifest is not None
    library = manifest.graphs["forward"].library
    _flip(filled.path(layout.blob_name(library)))
    store = Store.open(filled.root, readonly=readonly)
    assert not store.complete(manifest) and not store.complete(manifest)
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert ("ignored: the store is opened read-only" in said) == readonly == ("moved to quarantine/" not in said)
    assert (filled.root / "quarantine").is_dir() and len(list((filled.root / "quarantine").iterdir())) == (not readonly)
    filled.put(*make(0))
    assert store.complete(manifest)


def test_damage_that_cannot_be_moved_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, (first,) = fill(tmp_path / "s")
    _flip(store.path(layout.manifest_name(KEY, first)))
    (store.root / "quarantine").rmdir()
    (store.root / "quarantine").write_text("in the way")
    assert store.variants(KEY) == [] == store.variants(KEY)
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot be moved to quarantine/" in said


# -- named records


def test_records(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    assert store.record("tuning", "mm") is None
    store.put_record("tuning", "mm", {"choice": "onednn", "times": [1.5, 2.0]})
    assert store.record("tuning", "mm") == {"choice": "onednn", "times": (1.5, 2.0)}
    library = b"\x7fELF dispatcher"
    store.put_record("native", "cp311", {"blobs": [digest(library)]}, {digest(library): library})
    assert store.blob(digest(library)) == library
    assert store.record_names("native") == ["cp311"]
    _flip(store.path("tuning/mm.msgpack"))
    assert store.record("tuning", "mm") is None
    assert [path.name[:9] for path in (store.root / "quarantine").iterdir()] == ["tuning~mm"]
    with pytest.raises(ValueError, match="unknown record kind"):
        store.record("other", "x")
    with pytest.raises(ValueError, match="not named in the record"):
        store.put_record("native", "x", {}, {digest(library): library})


def test_opening_and_reading_a_large_manifest_is_quick(tmp_path: Path) -> None:
    """2,500 guards, as GPT-2 has: about 1 ms to open, 2 ms more for the guards' rows. The limit here is ten times that."""
    from precast.artifact_store import Guard, Predicate

    guards = [Guard((("local", "self"), ("submodule", f"layer{i}"), ("attr", "name")), Predicate.EQUALS, ("int", i)) for i in range(2500)]
    fill(tmp_path / "s", 1, guards=guards)
    best = 1.0
    for _ in range(5):
        begin = time.perf_counter()
        (manifest,) = Store.open(tmp_path / "s").variants(KEY)
        assert len(manifest.guard_rows) == 2500
        best = min(best, time.perf_counter() - begin)
    assert best < 0.03
