"""The index: rebuildable, folds uses in, and unpickles nothing."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import diskcache
import pytest

from precast.artifact_store import Store
from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.layout import manifest_name
from precast.artifact_store.local import usage
from precast.artifact_store.maintenance.index import Entry, MsgpackDisk, damage, open_index, stored
from precast.artifact_store.maintenance.index_file import open_database
from precast.artifact_store.maintenance.stats import stats
from precast.artifact_store.maintenance.verify import verify
from tests.artifact_store.sample import fill

KEY = "model-0123abcd"


class Bomb:
    """Sets off when unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("import os; os.environ['PRECAST_TEST_BOMB'] = '1'",))


def _entries(store: Store) -> list[Entry]:
    with open_index(store) as index:
        return index.entries(store)


def test_entries_tell_what_the_manifests_say(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    entries = _entries(store)
    assert [entry.artifact_id for entry in entries] == sorted(ids)
    for entry in entries:
        manifest = store.get(entry.artifact_id)
        assert manifest is not None
        assert (entry.program_name, entry.target, entry.versions, entry.blobs) == (
            "model",
            manifest.target,
            manifest.versions,
            manifest.blobs,
        )
        assert entry.guards == 4 and entry.hits == 0 and entry.size == sum(manifest.blobs.values()) + len(manifest.to_bytes())
    assert _entries(store) == entries  # now from the index
    assert _entries(Store.open(store.root, readonly=True)) == entries  # and without it


def test_uses_are_folded_in_once(tmp_path: Path) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    for _ in range(3):
        store.used(first)
    hits = {entry.artifact_id: entry.hits for entry in _entries(store)}
    assert hits == {first: 3, second: 0}
    store.used(first)
    store.used(second)
    hits = {entry.artifact_id: entry.hits for entry in _entries(store)}
    assert hits == {first: 4, second: 1}
    assert abs(next(entry.last_use for entry in _entries(store) if entry.hits) - time.time()) < 60
    figures = stats(store)
    assert (figures.artifacts, figures.programs, figures.hits, figures.never_used) == (2, 1, 5, 0)


def test_recording_a_use_is_quick_and_needs_no_database(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    best = 1.0
    for _ in range(20):
        begin = time.perf_counter()
        store.used(first)
        best = min(best, time.perf_counter() - begin)
    assert best < 0.001
    assert [path.name for path in (store.root / "index").iterdir()] == [usage.JOURNAL]


def test_a_store_copied_without_its_index_counts_again(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    shutil.rmtree(store.root / "index")
    store.used(first)
    assert [entry.hits for entry in _entries(store)] == [1]
    Store.open(tmp_path / "none").used(first)
    assert not (tmp_path / "none").exists()


def test_torn_lines_of_uses_are_left_out(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    store.used(first)
    with (store.root / "index" / usage.JOURNAL).open("ab") as journal:
        journal.write(b"abc 12\n\xff\xff\n" + first.encode() + b" notatime\n" + first[:20].encode())
    assert [entry.hits for entry in _entries(store)] == [1]


def test_recording_stops_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, (first,) = fill(tmp_path / "s")
    monkeypatch.setattr(usage, "LIMIT", 200)
    for _ in range(10):
        store.used(first)
    assert [entry.hits for entry in _entries(store)] == [3]


def test_a_rewritten_manifest_is_read_again(tmp_path: Path) -> None:
    store, (first,) = fill(tmp_path / "s")
    store.used(first)
    assert [(entry.program_name, entry.hits) for entry in _entries(store)] == [("model", 1)]
    fill(store.root, 1, program_name="renamed")
    assert [(entry.program_name, entry.hits) for entry in _entries(store)] == [("renamed", 1)]


def test_the_index_writes_no_pickle(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s", 2)
    _entries(store)
    with sqlite3.connect(store.root / "index" / "cache.db") as database:
        rows = database.execute("SELECT raw, mode FROM Cache").fetchall()
    assert rows and {tuple(row) for row in rows} == {(1, diskcache.core.MODE_RAW)}


@pytest.mark.parametrize("value", [Bomb(), object(), {1, 2}])
def test_what_is_not_plain_data_is_not_written(tmp_path: Path, value: object) -> None:
    with diskcache.Cache(str(tmp_path), disk=MsgpackDisk) as cache, pytest.raises(TypeError):
        cache["key"] = value


def test_keys_are_strings(tmp_path: Path) -> None:
    with diskcache.Cache(str(tmp_path), disk=MsgpackDisk) as cache:
        with pytest.raises(TypeError):
            cache[("a", 1)] = 1
        with pytest.raises(DamagedRecord):
            MsgpackDisk(str(tmp_path)).get(pickle.dumps("key"), raw=False)


@pytest.mark.parametrize(("column", "mode"), [("value", 4), ("value", 1), ("value", 3), ("filename", 4)])
def test_a_planted_pickle_is_not_loaded(tmp_path: Path, column: str, mode: int) -> None:
    """As an attacker, or diskcache's own Disk, would leave it (CVE-2025-69872)."""
    store, (first,) = fill(tmp_path / "s")
    _entries(store)
    payload: Any = sqlite3.Binary(pickle.dumps(Bomb()))
    if column == "filename":
        (store.root / "index" / "bomb.val").write_bytes(pickle.dumps(Bomb()))
        payload = "bomb.val"
    with sqlite3.connect(store.root / "index" / "cache.db") as database:
        changed = database.execute(f"UPDATE Cache SET {column} = ?, mode = ? WHERE key = ?", (payload, mode, first))
        assert changed.rowcount == 1
    assert [entry.artifact_id for entry in _entries(store)] == [first]
    assert "PRECAST_TEST_BOMB" not in os.environ


def test_that_the_bomb_works() -> None:
    pickle.loads(pickle.dumps(Bomb()))  # noqa: S301 - proves that the test above could fail
    assert os.environ.pop("PRECAST_TEST_BOMB") == "1"


@pytest.mark.parametrize("damage", [b"", b"not a database at all" * 100])
def test_a_damaged_index_costs_only_the_counts(tmp_path: Path, damage: bytes) -> None:
    store, (first,) = fill(tmp_path / "s")
    _entries(store)
    for path in (store.root / "index").glob("cache.db*"):
        path.write_bytes(damage)
    assert [entry.artifact_id for entry in _entries(store)] == [first]
    with open_index(store, rebuild=True) as index:
        index.entries(store)
    store.used(first)
    assert [entry.hits for entry in _entries(store)] == [1]


def test_a_locked_index_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network filesystem without locks."""
    store, (first,) = fill(tmp_path / "s")

    def refuse(*args: object, **kwargs: object) -> None:
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(diskcache, "Cache", refuse)
    assert [entry.artifact_id for entry in _entries(store)] == [first]


def test_what_was_removed_is_forgotten(tmp_path: Path) -> None:
    store, (first, second) = fill(tmp_path / "s", 2)
    _entries(store)
    store.path(manifest_name(KEY, first)).unlink()
    assert [entry.artifact_id for entry in _entries(store)] == [second]


@pytest.mark.parametrize("what", ["noise", "a file", "a pipe"])
def test_a_repair_rebuilds_a_damaged_index(what: str, tmp_path: Path) -> None:
    """And the uses since it broke are counted."""
    store, ids = fill(tmp_path / "s", 2)
    folder = store.root / "index"
    shutil.rmtree(folder)
    if what == "a file":
        folder.write_bytes(b"")
    else:
        folder.mkdir()
        store.used(ids[0])
        if what == "noise":
            (folder / "cache.db").write_bytes(os.urandom(10_000))
        else:
            os.mkfifo(folder / "cache.db")
    if what != "a pipe":  # diskcache would wait for its writer
        assert len(_entries(store)) == 2
    (problem,) = verify(store).problems
    assert problem.kind == "index" and not problem.repaired
    assert verify(store, repair=True).sound
    assert verify(store).problems == []
    assert sum(entry.hits for entry in _entries(store)) == (0 if what == "a file" else 1)


KILLED = """
import os, sys
from precast.artifact_store import Store
from precast.artifact_store.maintenance.index import open_index
store = Store.open(sys.argv[1])
with open_index(store) as index, index._cache.transact():
    index._cache.set(sys.argv[2], {"schema": 9})
    index._cache._con.execute("PRAGMA cache_spill = 1")
    for number in range(3000):
        index._cache.set(f"x{number}", {"schema": 9, "text": "x" * 2000})
    os._exit(9)
"""


def test_a_command_that_was_killed_while_it_counted_leaves_a_sound_index(tmp_path: Path) -> None:
    """What it had begun is taken back by the next command that writes; those that only look know that, and touch nothing."""
    store, (first,) = fill(tmp_path / "s")
    store.used(first)
    entries = _entries(store)
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(store.root), first], cwd=root, env=environment, check=False)
    assert done.returncode == 9 and (store.root / "index" / "cache.db-journal").stat().st_size
    before = {path.name: path.stat().st_mtime_ns for path in (store.root / "index").iterdir()}
    assert _entries(Store.open(store.root, readonly=True)) == entries and verify(store).problems == []
    assert {path.name: path.stat().st_mtime_ns for path in (store.root / "index").iterdir()} == before
    assert _entries(store) == entries and not (store.root / "index" / "cache.db-journal").exists()


_BEGINS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
"""


@pytest.mark.parametrize("look", ["rows", "damage"])
def test_nothing_that_reads_the_index_drops_the_lock_of_a_transaction(tmp_path: Path, look: str) -> None:
    """Closing any descriptor of the file would (POSIX): two commands would write at the same time, and the index be malformed."""
    store, _ = fill(tmp_path / "s", 2)
    _entries(store)
    database = store.root / "index" / "cache.db"
    with closing(open_database(store.root)) as cache, cache.transact():
        assert stored(store.root)[0] if look == "rows" else not damage(store)
        done = subprocess.run([sys.executable, "-c", _BEGINS, str(database)], capture_output=True, text=True, check=False)
    assert done.returncode and "database is locked" in done.stderr
