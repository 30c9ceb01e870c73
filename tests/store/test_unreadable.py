"""What this user may not read is no damage: it is named, and neither set aside nor counted as unneeded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from precast.artifact_store import Store
from precast.artifact_store.collect import files, referenced
from precast.artifact_store.prune import Policy, prune
from precast.artifact_store.verify import verify
from precast.cli import main
from tests.store.sample import fill

CLOSED = {
    "a manifest": lambda store: files(store.root / "programs")[0],
    "a blob": lambda store: files(store.root / "objects")[0],
    "all programs": lambda store: store.root / "programs",
    "all blobs": lambda store: store.root / "objects",
}


def close(monkeypatch: pytest.MonkeyPatch, closed: Path) -> None:
    """As for a user who may not read `closed`, nor look into it. The tests may run as one who may read all."""

    def barring(function: Callable[..., Any]) -> Callable[..., Any]:
        def barred(path: Any, *args: Any, **given: Any) -> Any:
            here = Path(os.fspath(path)) if isinstance(path, str | os.PathLike) else None
            if here is not None and (here == closed or closed in here.parents):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *args, **given)

        return barred

    for owner, name in ((os, "open"), (os, "scandir"), (os, "listdir"), (Path, "read_bytes")):
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
    failing, read = CLOSED["a manifest"](store), Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path == failing:
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert referenced(store) is None
    assert prune(store, Policy()).leftovers == ()
    (problem,) = verify(store, repair=True).problems
    assert problem.kind == "unreadable" and "Input/output error" in problem.detail
    monkeypatch.undo()
    assert set(everything) <= set(files(store.root)) and verify(store).sound


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
