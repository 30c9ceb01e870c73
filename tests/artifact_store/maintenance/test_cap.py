"""A limit of the store's size that keeps itself: what goes, what never does, and that a put does not wait for it."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.layout import manifest_name
from precast.artifact_store.local.size_limit import parse, size_limit
from precast.artifact_store.maintenance import cap
from precast.artifact_store.maintenance.index import open_index
from precast.artifact_store.maintenance.pins import pin
from precast.artifact_store.maintenance.policy import total_size
from precast.artifact_store.remote.spool import ARTIFACT, Pending, note
from tests.artifact_store.sample import complete, fill, make

KEY = "model-0123abcd"
SIZE = 100_000


def aged(root: Path, count: int, days: float = 10) -> tuple[Store, list[str]]:
    """A store of artifacts of 100 kB, the first of which is the oldest."""
    store, ids = fill(root, 0)
    ids = [store.put(*make(number, size=SIZE)) for number in range(count)]
    for number, artifact_id in enumerate(ids):
        when = time.time() - days * 86400 + number
        os.utime(store.path(manifest_name(KEY, artifact_id)), (when, when))
        for blob in (store.root / "objects").rglob("*"):
            if blob.is_file():
                os.utime(blob, (when, when))
    return store, ids


def there(store: Store) -> list[str]:
    return [manifest.artifact_id for manifest in store.variants(KEY)]


def test_the_least_recently_used_go_down_to_nine_tenths(tmp_path: Path) -> None:
    store, ids = aged(tmp_path / "s", 10)
    assert cap.hold(store, 20 * SIZE) is None and len(there(store)) == 10
    done = cap.hold(store, 8 * SIZE)
    assert done is not None and {removal.entry.artifact_id for removal in done.removed} == set(ids[:3])
    with open_index(store) as index:
        assert total_size(index.entries(store)) <= 0.9 * 8 * SIZE + 20_000
    assert cap.hold(store, 8 * SIZE) is None, "so that the next put does not begin again"
    assert all(complete(store, manifest) for manifest in store.variants(KEY))


def test_what_is_pinned_to_be_sent_or_fresh_stays(tmp_path: Path) -> None:
    store, ids = aged(tmp_path / "s", 5)
    pin(store, ids[0])
    note(store.root, Pending("s3://bucket", ARTIFACT, ids[1], KEY))
    store.used(ids[2])
    fresh = store.put(*make(99, size=SIZE))
    assert cap.hold(store, 1) is not None
    assert set(there(store)) == {ids[0], ids[1], ids[2], fresh}
    assert cap.hold(store, 1, now=time.time() + 2 * cap.RECENT) is not None
    assert set(there(store)) == {ids[0], ids[1]}


def test_a_put_does_not_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = aged(tmp_path / "s", 4)
    gate, begun = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        begun.set()
        assert gate.wait(20)

    monkeypatch.setattr(cap, "hold", hold)
    monkeypatch.setenv("PRECAST_STORE_MAX_SIZE", "100k")
    begin = time.monotonic()
    store.put(*make(50, size=SIZE))
    store.put(*make(51, size=SIZE))
    assert time.monotonic() - begin < 10 and begun.wait(10)
    thread = cap._running[store.root]
    assert thread.daemon and thread.is_alive()
    gate.set()
    thread.join(20)
    assert not thread.is_alive() and len(there(store)) == 6


def test_it_is_held_after_a_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = aged(tmp_path / "s", 4)
    monkeypatch.setenv("PRECAST_STORE_MAX_SIZE", "350kB")
    new = store.put(*make(50, size=SIZE))
    cap._running[store.root].join(20)
    assert set(there(store)) == {ids[2], ids[3], new} or set(there(store)) == {ids[3], new}


def test_without_a_limit_nothing_is_loaded_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRECAST_STORE_MAX_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)
    store, _ = fill(tmp_path / "s", 1)
    assert store.root not in cap._running and store.root not in cap._next


def test_where_uses_are_not_known_nothing_goes_and_it_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, _ = aged(tmp_path / "s", 3)
    (store.root / "index" / "cache.db").write_bytes(os.urandom(10_000))
    with caplog.at_level(logging.WARNING, "precast.store"):
        cap._look(store, SIZE, 0.0)
    assert "could not be held to its limit" in caplog.text and "not known which artifacts were used" in caplog.text
    assert len(there(store)) == 3


def test_one_process_at_a_time(tmp_path: Path) -> None:
    store, _ = aged(tmp_path / "s", 3)
    with store.lease(cap.LEASE) as lease:
        assert lease.held and cap.hold(store, SIZE) is None and len(there(store)) == 3
    assert cap.hold(store, SIZE) is not None


@pytest.mark.parametrize(
    ("text", "size"), [("500M", 500_000_000), ("2GiB", 2 << 30), ("1.5 kB", 1500), ("1048576", 1 << 20), (7, 7), ("1T", 10**12)]
)
def test_sizes(text: Any, size: int) -> None:
    assert parse(text, "here") == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "1Q", True, 1.5, 0, "0M", [1], "1 2"])
def test_what_is_no_size_is_refused_by_its_place(text: Any) -> None:
    with pytest.raises(StoreError, match="here: .* is not a size; write for instance 500M"):
        parse(text, "here")


def test_where_the_limit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRECAST_STORE_MAX_SIZE", raising=False)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    assert size_limit(inner) is None
    (tmp_path / "pyproject.toml").write_text('[tool.precast]\nmax_size = "3MB"\n')
    assert size_limit(inner) == 3_000_000
    (tmp_path / "a" / "precast.toml").write_text('max_size = "2MB"\n')
    assert size_limit(inner) == 2_000_000
    monkeypatch.setenv("PRECAST_STORE_MAX_SIZE", "1MB")
    assert size_limit(inner) == 1_000_000
    monkeypatch.setenv("PRECAST_STORE_MAX_SIZE", "0")
    assert size_limit(inner) is None
    monkeypatch.delenv("PRECAST_STORE_MAX_SIZE")
    (tmp_path / "a" / "precast.toml").write_text("max_size = [\n")
    with pytest.raises(StoreError, match="is no TOML"):
        size_limit(inner)


def test_a_limit_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PRECAST_STORE_MAX_SIZE", "lots")
    store, ids = fill(tmp_path / "s", 1)
    assert there(store) == ids and "'lots' is not a size" in caplog.text
