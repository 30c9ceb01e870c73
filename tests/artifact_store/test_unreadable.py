"""What this user may not read is no damage: it is named, and neither set aside nor counted as unneeded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.artifact_store.maintenance import garbage
from precast.artifact_store.maintenance import verify as verification
from precast.artifact_store.maintenance.garbage import referenced
from precast.artifact_store.maintenance.prune import Policy, prune
from precast.artifact_store.maintenance.scan import files
from precast.artifact_store.maintenance.verify import verify
from precast.artifact_store.tiers.folder import read_file
from precast.cli.main import main
from tests.artifact_store.sample import fill

CLOSED = {
    "a manifest": lambda store: files(store.root / "programs")[0],
    "a blob": lambda store: files(store.root / "objects")[0],
    "all programs": lambda store: store.root / "programs",
    "all blobs": lambda store: store.root / "objects",
}


def close(monkeypatch: pytest.MonkeyPatch, *closed: Path, listed: bool = False) -> None:
    """As for a user who may not read these, nor look into them, but for the names in them where `listed`. The tests may run as one who
    may read all.
    """

    def barring(function: Callable[..., Any]) -> Callable[..., Any]:
        def barred(path: Any, *args: Any, **given: Any) -> Any:
            here = Path(os.fspath(path)) if isinstance(path, str | os.PathLike) else None
            if here is not None and any((here == place and not listed) or place in here.parents for place in closed):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *args, **given)

        return barred

    for owner, name in ((os, "open"), (os, "scandir"), (os, "listdir")):
        monkeypatch.setattr(owner, name, barring(getattr(owner, name)))


@pytest.mark.parametrize("what", CLOSED)
def test_it_is_left_alone_and_named(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = fill(tmp_path / "s", 2)
    everything = files(store.root)
    for blob in files(store.root / "objects"):
        os.utime(blob, (0, 0))  # old enough to be a leftover
    closed, keys = CLOSED[what](store), store.programs()
    with monkeypatch.context() as patch:
        close(patch, closed)
        report = verify(store, repair=True)
        assert {problem.kind for problem in report.problems} == {"unreadable"} and not report.sound
        assert report.problems[0].name == closed.relative_to(store.root).as_posix()
        if "blob" not in what:
            assert referenced(store) is None
        assert prune(store, Policy()).leftovers == ()
        told = [Store.open(store.root).why_unread(key) for key in keys]
        assert any("cannot be read (Permission denied); check the permissions" in said for said in told)
        for command, code in (("doctor", 1), ("verify", 1), ("ls", 0)):
            result = CliRunner().invoke(main, [command, "--store", str(store.root)])
            assert result.exit_code == code and "Permission denied" in result.output, result.output
            assert closed.name in result.output
    assert set(everything) <= set(files(store.root))
    assert verify(Store.open(store.root)).sound


def test_a_disk_that_fails_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest opens and cannot be read to its end: its blobs may be needed."""
    store, _ = fill(tmp_path / "s", 2)
    everything = files(store.root)
    for blob in files(store.root / "objects"):
        os.utime(blob, (0, 0))
    failing = CLOSED["a manifest"](store)

    def failing_read(path: Path) -> bytes:
        if path == failing:
            raise OSError(5, "Input/output error", str(path))
        return read_file(path)

    for module in (garbage, verification):
        monkeypatch.setattr(module, "read_file", failing_read)
    assert referenced(store) is None
    assert prune(store, Policy()).leftovers == ()
    (problem,) = verify(store, repair=True).problems
    assert problem.kind == "unreadable" and "Input/output error" in problem.detail
    monkeypatch.undo()
    assert set(everything) <= set(files(store.root)) and verify(store).sound


@pytest.mark.parametrize("link", ["a program", "nothing"])
def test_a_link_is_named_and_keeps_its_blobs(link: str, tmp_path: Path) -> None:
    """Of a mount, say, that is down for an hour."""
    store, ids = fill(tmp_path / "s", 2)
    for blob in files(store.root / "objects"):
        os.utime(blob, (0, 0))
    blobs, program = files(store.root / "objects"), store.root / "programs" / "model-0123abcd"
    linked = program if link == "a program" else files(program)[0]
    linked.rename(tmp_path / "away")
    linked.symlink_to(tmp_path / ("away" if link == "a program" else "not mounted"))
    for command, code in (("doctor", 1), ("verify", 1), ("ls", 0), ("prune", 0)):
        result = CliRunner().invoke(main, [command, "--store", str(store.root)])
        assert result.exit_code == code and "a link to" in result.output, result.output
    assert {problem.kind for problem in verify(store, repair=True).problems} == {"unreadable"}
    assert files(store.root / "objects") == blobs
    linked.unlink()
    (tmp_path / "away").rename(linked)
    assert {m.artifact_id for m in store.variants("model-0123abcd")} == set(ids) and verify(store).sound


@pytest.mark.parametrize("name", ["garbage", "bad\udcff", "0123 (conflict)"])
def test_what_is_no_artifact_is_left_out_and_named(name: str, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    program = store.root / "programs" / "model-0123abcd"
    copied = files(program)[0].read_bytes()
    (program / f"{name}.msgpack").write_bytes(copied)
    (store.root / "programs" / "a b").mkdir()
    (store.root / "programs" / "a b" / f"{ids[0]}.msgpack").write_bytes(copied)
    for command, code in (("ls", 0), ("stats", 0), ("prune", 0), ("verify", 1)):
        for more in ([], ["--json"]):
            result = CliRunner().invoke(main, [command, "--store", str(store.root), *more])
            assert result.exit_code == code and not isinstance(result.exception, ValueError), result.output
    assert store.get("0" * 64) is None and len(list(store.manifests())) == 2
    report = verify(store, repair=True)
    assert {problem.kind for problem in report.problems} == {"foreign"} and report.set_aside == 0
    assert verify(store).sound


def test_folders_that_cannot_be_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names can be listed, and nothing else."""
    store, _ = fill(tmp_path / "s", 2)
    everything, ask = files(store.root), Path.stat
    closed = [store.root / "programs" / "model-0123abcd", store.root / "quarantine"]
    closed[1].mkdir(exist_ok=True)
    (closed[1] / "old").write_bytes(b"")
    with monkeypatch.context() as patch:
        close(patch, *closed, listed=True)

        def barred(path: Path, **given: Any) -> os.stat_result:
            if set(path.parents) & set(closed):
                raise PermissionError(13, "Permission denied", str(path))
            return ask(path, **given)

        patch.setattr(Path, "stat", barred)
        for command, code in (("verify", 1), ("stats", 0), ("prune", 0), ("ls", 0), ("doctor", 1)):
            result = CliRunner().invoke(main, [command, "--store", str(store.root)])
            assert result.exit_code == code and not isinstance(result.exception, OSError), result.output
    assert set(everything) <= set(files(store.root))


def test_pipes_in_the_place_of_small_files(tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s")
    os.mkfifo(store.root / "index" / "uses")
    store.used(ids[0])
    assert CliRunner().invoke(main, ["ls", "--store", str(store.root)]).exit_code == 0
    os.mkfifo(store.root / "leases" / ids[0])
    with store.lease(ids[0], timeout=0.2) as lease:
        assert not lease.held
    (store.root / "format").unlink()
    os.mkfifo(store.root / "format")
    assert "format file says ''" in Store.open(store.root).problem


@pytest.mark.timeout(60)
def test_a_link_to_a_device_is_not_read_for_ever(tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s")
    (key,) = store.programs()
    stored = store.manifest_names(key)
    path = store.path(stored[0])
    path.unlink()
    path.symlink_to("/dev/zero")
    assert len(store.variants(key)) == len(stored) - 1 and store.quarantined() == 1
    (store.root / "format").unlink()
    (store.root / "format").symlink_to("/dev/zero")
    assert "format file says ''" in Store.open(store.root).problem


@pytest.mark.parametrize("folder", ["objects/00", "programs/model-0123abcd", "tuning"])
def test_a_pipe_is_named_and_waits_for_nobody(folder: str, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 2)
    everything = files(store.root)
    name = "0" * 64 if folder.startswith("objects") else f"{'0' * 64}.msgpack"
    (store.root / folder).mkdir(exist_ok=True)
    os.mkfifo(store.root / folder / name)
    (problem,) = verify(store).problems
    assert problem.kind == "unreadable" and problem.name == f"{folder}/{name}" and "not a file" in problem.detail
    for command, code in (("doctor", 1), ("verify", 1), ("ls", 0), ("stats", 0), ("prune", 0)):
        result = CliRunner().invoke(main, [command, "--store", str(store.root)])
        assert result.exit_code == code, result.output
    assert {m.artifact_id for key in store.programs() for m in store.variants(key)} == set(ids)
    assert store.blob("0" * 64) is None and store.record("tuning", "0" * 64) is None  # empty, so damaged: set aside
    assert verify(store).sound
    assert set(everything) <= set(files(store.root))
