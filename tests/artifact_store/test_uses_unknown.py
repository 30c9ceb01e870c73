"""Where it is not known which artifacts were used, nothing is removed for not being used; and a look takes nothing over."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diskcache
import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store, StoreError
from precast.artifact_store.format.layout import manifest_name
from precast.artifact_store.local import usage
from precast.artifact_store.maintenance import index, index_file
from precast.artifact_store.maintenance import verify as verification
from precast.artifact_store.maintenance.index import open_index
from precast.artifact_store.maintenance.prune import Policy, prune
from precast.artifact_store.maintenance.verify import verify
from precast.artifact_store.tiers import owner as ownership
from precast.artifact_store.tiers.owner import user_name
from precast.cli.main import main
from tests.artifact_store.sample import fill, make

KEY = "model-0123abcd"
DAY = 86400.0
BY_USE = (["--unused-for", "30d"], ["--max-size", "1"], ["--keep-last", "1"])
OTHER = 12345


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, f"{words}: {result.output}{result.exception!r}"
    return result


def data(*words: object, code: int = 0) -> Any:
    return json.loads(run(*words, "--json", code=code).stdout)


def filled(root: Path) -> Store:
    """Two artifacts made 40 days ago, of which one was used just now: counted once, and noted once more."""
    store, ids = fill(root, 2)
    for artifact_id in ids:
        os.utime(store.path(manifest_name(KEY, artifact_id)), (time.time() - 40 * DAY,) * 2)
    store.used(ids[0])
    with open_index(store) as opened:
        assert sorted(entry.hits for entry in opened.entries(store)) == [0, 1]
    store.used(ids[0])
    return store


def _raising(error: BaseException) -> Callable[..., None]:
    def function(*_: object, **__: object) -> None:
        raise error

    return function


def _noise(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.root / "index" / "cache.db").write_bytes(os.urandom(10_000))


def _bad_row(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with sqlite3.connect(store.root / "index" / "cache.db") as database:
        database.execute("UPDATE Cache SET value = ? WHERE rowid = 1", (b"\xc1",))


def _a_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(store.root / "index")
    (store.root / "index").write_bytes(b"")


def _a_pipe(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.root / "index" / "cache.db").unlink()
    os.mkfifo(store.root / "index" / "cache.db")


def _locked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diskcache, "Cache", _raising(sqlite3.OperationalError("database is locked")))


def _fails_with(number: int) -> Callable[[Store, pytest.MonkeyPatch], None]:
    """As SQLite says it, of a disk on which nothing can be written for this reason."""

    def damage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(diskcache, "Cache", _raising(sqlite3.OperationalError("unable to open database file")))
        monkeypatch.setattr(tempfile, "TemporaryFile", _raising(OSError(number, os.strerror(number))))

    return damage


def _unwritable_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the counts are to be kept, and was not when the database was opened."""

    monkeypatch.setattr(diskcache.Cache, "set", _raising(sqlite3.OperationalError("database or disk is full")))
    monkeypatch.setattr(tempfile, "TemporaryFile", _raising(OSError(errno.ENOSPC, "No space left on device")))


# what is wrong, what is said, whether a repair mends it
CASES: dict[str, tuple[Callable[[Store, pytest.MonkeyPatch], None], str, bool]] = {
    "noise": (_noise, "index/cache.db is damaged", True),
    "a bad row": (_bad_row, "index/cache.db has 1 damaged row; `precast verify --repair` begins it anew", True),
    "a file": (_a_file, "index/ is a file, where a folder is due; `precast verify --repair`", True),
    "a pipe": (_a_pipe, "index/cache.db is not a file; `precast verify --repair`", True),
    "locked": (_locked, "index/ is locked: wait for the other `precast` command", False),
    "full": (_fails_with(errno.ENOSPC), "(No space left on device): make room (`precast prune`)", False),
    "quota": (_fails_with(errno.EDQUOT), "the quota is used up: make room", False),
    "read-only": (
        _fails_with(errno.EROFS),
        "(Read-only file system): it is mounted read-only here: do this where it can be written",
        False,
    ),
    "forbidden": (_fails_with(errno.EACCES), "(Permission denied): check the permissions", False),
    "failing": (_fails_with(errno.EIO), "mend the disk", False),
    "full later": (_unwritable_rows, "make room", False),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_pruned_by_use_and_why_is_told(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it, words, mendable = CASES[case]
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "s"))
    store = filled(tmp_path / "s")
    with monkeypatch.context() as patch:
        break_it(store, patch)
        for policy in BY_USE:
            for more in ([], ["--dry-run"]):
                said = run("prune", *policy, *more, code=1).stderr
                assert "nothing was pruned, since it is not known which artifacts were used" in said and words in said, said
                assert "`--older-than`, `--target` and `--stale-versions` need no uses" in said
                assert words in data("prune", *policy, *more, code=1)["error"]
        with pytest.raises(StoreError, match="nothing was pruned"):
            prune(store, Policy(unused_for=DAY))
        for command in ("ls", "stats"):
            said = run(command).stderr
            assert said.startswith("Which artifacts were used is not known: index/") and words in said
        assert all(line.split("\t")[6:8] == ["", ""] for line in run("ls").stdout.splitlines())
        assert [(entry["hits"], entry["last_use"]) for entry in data("ls")] == [(None, None)] * 2
        figures = data("stats")
        assert (figures["hits"], figures["never_used"], figures["last_use"]) == (None, None, None) and words in figures["uses_unknown"]
        assert "?" in run("ls", "-H").stdout and "?" in run("stats", "-H").stdout
        assert len(list(store.manifests())) == 2
        if mendable:
            (problem,) = verify(store).problems
            assert problem.kind == "index" and words in problem.detail and not problem.repaired
            assert "no artifact is damaged" in run("verify", code=1).stderr
            assert "(rebuilt)" in run("verify", "--repair").stdout and data("verify")["problems"] == []
        assert len(data("prune", "--older-than", "50d")["removed"]) == 0  # which needs no uses
    hits = sorted(entry["hits"] for entry in data("ls"))
    if mendable:  # its counts are lost, and what was used may be any of them: none is unused for longer than the index is old
        assert hits == ([0, 0] if case == "a file" else [0, 1])
        done = run("prune", "--unused-for", "30d")
        assert "Uses before" in done.stderr and "the conditions hold for none of 2 artifacts" in done.stderr
    else:  # nothing was lost
        assert hits == [0, 2]
        assert len(data("prune", "--unused-for", "30d")["removed"]) == 1


def test_a_lost_index_makes_nothing_old(tmp_path: Path) -> None:
    """A store that was copied without it: what was used where it came from is not known here."""
    store = filled(tmp_path / "s")
    (used,) = (entry.artifact_id for entry in _entries(store) if entry.hits)
    shutil.rmtree(store.root / "index")
    assert prune(store, Policy(unused_for=DAY), dry_run=True).removed == ()
    assert prune(store, Policy(unused_for=DAY)).removed == ()
    shutil.rmtree(store.root / "index")
    store.used(used)  # by the server, first
    assert prune(store, Policy(unused_for=DAY)).removed == ()
    later = prune(store, Policy(unused_for=DAY), now=time.time() + 2 * DAY, dry_run=True)
    assert len(later.removed) == 2 and later.began


def test_a_full_journal_makes_nothing_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later uses were not noted."""
    store = filled(tmp_path / "s")
    monkeypatch.setattr(usage, "LIMIT", 70)
    for dry_run in (True, False, False):
        assert prune(store, Policy(unused_for=DAY), dry_run=dry_run).removed == ()
    assert prune(Store.open(store.root, readonly=True), Policy(unused_for=DAY), dry_run=True).removed == ()
    assert _hits(store) == 2 and len(prune(store, Policy(unused_for=DAY), now=time.time() + 2 * DAY, dry_run=True).removed) == 2


def _entries(store: Store) -> list[index.Entry]:
    with open_index(store) as opened:
        return opened.entries(store)


def _hits(store: Store) -> int:
    return sum(entry.hits for entry in _entries(store))


def test_a_use_is_counted_once_wherever_the_counting_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, (first,) = fill(tmp_path / "s")
    store.used(first)
    with monkeypatch.context() as patch:  # killed when the count is kept, and the file that it came from is not removed
        remove = Path.unlink

        def unlink(path: Path, missing_ok: bool = False) -> None:
            if path.name.startswith("uses."):
                raise KeyboardInterrupt
            remove(path, missing_ok)

        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            _entries(store)
    assert len(list((store.root / "index").glob("uses.*"))) == 1
    assert _hits(store) == _hits(Store.open(store.root, readonly=True)) == _hits(store) == 1
    assert list((store.root / "index").glob("uses*")) == []
    store.used(first)
    with monkeypatch.context() as patch:  # killed before
        patch.setattr(diskcache.Cache, "set", _raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            _entries(store)
    store.used(first)
    assert _hits(Store.open(store.root, readonly=True)) == _hits(store) == _hits(store) == 3


def test_a_planted_name_is_not_removed(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    (tmp_path / "precious").write_text("x")
    with diskcache.Cache(str(store.root / "index"), disk=index.MsgpackDisk) as cache:
        for planted in ({"files": ["../../precious", "uses./../../../precious", 7]}, "text", {"files": 1.5}):
            cache["folded"] = planted
            assert _hits(store) >= 1 and (tmp_path / "precious").exists()


def test_a_repair_leaves_an_index_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s")
    monkeypatch.setattr(index_file, "WAIT", 0.1)
    with contextlib.closing(sqlite3.connect(store.root / "index" / "cache.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        (problem,) = verify(store, repair=True).problems
        assert problem.kind == "index" and "index/ is locked" in problem.detail and not problem.repaired
        other.execute("ROLLBACK")
    assert verify(store, repair=True).problems == [] and _hits(store) == 2


def test_rows_of_what_is_gone_go(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    for artifact_id in ids:
        store.used(artifact_id)
    assert _hits(store) == 2
    store.remove(ids[0])
    assert _hits(store) == 1
    store.put(*make(0))  # a new one with the old name
    assert _hits(store) == 1


def test_an_index_of_before_keeps_its_counts(tmp_path: Path) -> None:
    """With a write-ahead log, and rows that did not tell the last use that was counted."""
    store = filled(tmp_path / "s")
    database = store.root / "index" / "cache.db"
    rows = index.stored(store.root)[0]
    shutil.rmtree(store.root / "index")
    with diskcache.Cache(str(database.parent), disk=index.MsgpackDisk) as cache:
        for artifact_id, row in rows.items():
            cache[artifact_id] = {name: value for name, value in row.items() if name != "counted"}
    assert database.read_bytes()[18:20] == b"\2\2"
    before = sorted(path.name for path in database.parent.iterdir())
    assert _hits(Store.open(store.root, readonly=True)) == 1 and sorted(path.name for path in database.parent.iterdir()) == before
    assert _hits(store) == 1 and len(prune(store, Policy(unused_for=30 * DAY), dry_run=True).removed) == 1
    assert database.read_bytes()[18:20] == b"\1\1"


def _belongs_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        ownership,
        index_file,
        sys.modules["precast.artifact_store.tiers.disk_errors"],
        sys.modules["precast.cli.store.store_commands"],
    ):
        monkeypatch.setattr(module, "owner", lambda root: OTHER)


def test_a_look_by_another_user_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s")
    run("ls", "--store", store.root)  # loads the module that is patched
    shutil.rmtree(store.root / "index")
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    _belongs_to_another(monkeypatch)
    for words in (["ls"], ["ls", "--json"], ["stats"], ["prune", "--dry-run"], ["verify"], ["show", store.variants(KEY)[0].artifact_id]):
        run(*words, "--store", store.root)
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    for name in ("fchown", "chown"):
        monkeypatch.setattr(os, name, _raising(PermissionError(errno.EPERM, "Operation not permitted")))
    store.used(store.variants(KEY)[0].artifact_id)  # its server runs as the wrong user: it counts nothing
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_an_index_of_another_user_is_told_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root's looks left it."""
    store = filled(tmp_path / "s")
    run("ls", "--store", store.root)
    _belongs_to_another(monkeypatch)
    me = user_name(os.geteuid())
    words = f"index/ belongs to {me}, and the store to uid {OTHER}, who cannot count uses in it: `chown -R {OTHER} {store.root}/index`"
    for policy in BY_USE:
        assert words in run("prune", *policy, "--store", store.root, code=1).stderr
    assert words in run("ls", "--store", store.root).stderr and words in run("doctor", "--store", store.root).stdout
    (problem,) = verify(store).problems
    assert problem.kind == "index" and words in problem.detail
    assert len(list(store.manifests())) == 2


@contextmanager
def _as_user(uid: int) -> Iterator[None]:
    """The very permissions of that user; what is needed of Python is loaded before."""
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_root_and_another_user_for_real() -> None:
    """Root looks, prunes, builds and repairs in a user's store, and all in it stays the user's."""
    user = 23456
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        root = Path(folder) / "s"
        root.mkdir(mode=0o700)
        os.chown(root, user, user)
        with _as_user(user):
            store = filled(root)
            ids = [entry.artifact_id for entry in _entries(store)]
        shutil.rmtree(root / "index")

        def mine() -> bool:
            return all(path.stat().st_uid == user for path in (root, *root.rglob("*")))

        for words in (["ls"], ["stats"], ["verify"], ["prune", "--dry-run"], ["doctor"]):
            run(*words, "--store", root)
            assert mine() and not (root / "index").exists()
        Store.open(root).used(ids[0])
        Store.open(root).put(*make(7, program_key="by-root"))
        run("prune", "--unused-for", "30d", "--store", root)
        assert mine() and (root / "index" / "cache.db").exists()
        with _as_user(user):
            store = Store.open(root)
            store.used(ids[0])
            assert _hits(store) == 2 and len(list(store.manifests())) == 3
        for path in (root / "index", *(root / "index").iterdir()):
            os.chown(path, 0, 0)
        os.chmod(root / "index", 0o700)
        with _as_user(user):
            store.used(ids[0])  # not counted
            with pytest.raises(StoreError, match="not known which artifacts were used"):
                prune(store, Policy(unused_for=30 * DAY))
        given_back = verification.verify(Store.open(root), repair=True)
        assert given_back.sound and mine() and _hits(Store.open(root, readonly=True)) == 2, "root gives it back, with its counts"
        for path in (root / "index", *(root / "index").iterdir()):
            os.chown(path, 0, 0)
        with _as_user(user):
            repaired = verify(Store.open(root), repair=True)
            assert repaired.sound and "only its owner can remove it" in repaired.problems[0].detail
            store.used(ids[1])
            assert _hits(store) == 1 and prune(store, Policy(unused_for=30 * DAY)).removed == ()
        assert usage.began(root) > time.time() - 60
