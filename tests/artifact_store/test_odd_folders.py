"""Stores whose folder is no folder, goes away or becomes another one: reasons, and never a wait for nobody."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from precast.artifact_store import Store
from precast.artifact_store.format.errors import StoreError
from tests.artifact_store.sample import complete, fill, make


@pytest.mark.parametrize("broken", [".", "leases", f"leases/{'ab' * 32}"])
@pytest.mark.parametrize("how", ["link", "file"])
def test_a_lease_that_nobody_can_hold_is_not_waited_for(broken: str, how: str, tmp_path: Path) -> None:
    """A broken link: it exists for those who would make it, and does not for those who look."""
    root = tmp_path / "store"
    store, _ = fill(root)
    place = root / broken
    if place.is_dir():
        shutil.rmtree(place)
    if how == "link":
        place.symlink_to(tmp_path / "nowhere" / "there")
    else:
        place.write_bytes(b"")
    begin = time.monotonic()
    with store.lease("ab" * 32, timeout=0.3) as lease:
        assert not lease.held and time.monotonic() - begin < 5
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["a b", "new\nline", "日本", "sur\udce9", "-rf", "%41", "a:b"])
def test_any_name_will_do(name: str, tmp_path: Path) -> None:
    for path in (str(tmp_path / name), os.fsencode(tmp_path / name)):
        store = Store.open(path, strict=True)  # type: ignore[arg-type]
        manifest, blobs = make()
        store.put(manifest, blobs)
        with store.lease(manifest.artifact_id) as lease:
            assert lease.held
        assert complete(Store.open(tmp_path / name), manifest)


def test_a_name_that_no_folder_has_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "null character" in Store.open("a\0b").problem
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "the current folder" in Store.open("store").problem
    assert not Store.open(tmp_path).problem


@pytest.mark.parametrize(("text", "words"), [("99\n", "layout version 99"), ("hello\n", "not a precast store")])
def test_a_folder_that_became_another_layout_is_not_written(text: str, words: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    store, _ = fill(root)
    shutil.rmtree(root)
    root.mkdir()
    (root / "format").write_text(text)
    with pytest.raises(StoreError, match=words):
        store.put(*make(1))
    assert os.listdir(root) == ["format"]


def test_a_folder_that_went_away_is_made_again(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    manifest, blobs = make(1)
    store.put(manifest, blobs)
    assert complete(store, manifest)
