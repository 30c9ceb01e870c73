"""Uses of machines that cannot write the store that they read: noted in files, told to remotes, brought in, and counted once."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from precast.artifact_store import Store
from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.layout import manifest_name
from precast.artifact_store.format.msgpack import pack
from precast.artifact_store.local import machine_uses, usage
from precast.artifact_store.local.machine_uses import Uses, added, from_bytes, later, to_bytes
from precast.artifact_store.maintenance.index import open_index
from precast.artifact_store.maintenance.prune import Policy, prune
from precast.artifact_store.maintenance.verify import verify
from precast.artifact_store.remote import layout, usage_report
from precast.artifact_store.remote.endpoint import Unreachable, Unsupported
from precast.artifact_store.remote.usage_report import Report
from precast.cli.main import main
from tests.artifact_store.remote.memory_endpoint import MemoryEndpoint
from tests.artifact_store.sample import fill

KEY = "model-0123abcd"
DAY = 86400.0
A, B = "a" * 64, "b" * 64


def run(*words: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


def hits(store: Store) -> dict[str, int]:
    with open_index(store) as index:
        return {entry.artifact_id: entry.hits for entry in index.entries(store)}


def old(store: Store, days: float = 60) -> None:
    for manifest in store.variants(KEY):
        os.utime(store.path(manifest_name(KEY, manifest.artifact_id)), (time.time() - days * DAY,) * 2)


@pytest.mark.parametrize("readonly", [True, False])
def test_a_server_notes_its_uses_in_a_file_of_its_machine(readonly: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, ids = fill(tmp_path / "s", 2)
    monkeypatch.setenv("PRECAST_USES_DIR", str(tmp_path / "uses" / "here"))
    server = Store.open(filled.root, readonly=readonly)
    before = sorted(os.walk(filled.root))
    for artifact_id in (ids[0], ids[0], ids[1]):
        server.used(artifact_id)
    assert sorted(os.walk(filled.root)) == before
    (file,) = (tmp_path / "uses" / "here").iterdir()
    assert file.name == f"{usage.machine_name()}.uses" and [name for name, _ in usage.lines(file.read_bytes())] == [ids[0], ids[0], ids[1]]


def test_a_folder_that_cannot_be_written_harms_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, ids = fill(tmp_path / "s", 1)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PRECAST_USES_DIR", str(tmp_path / "file" / "under"))
    Store.open(filled.root, readonly=True).used(ids[0])
    monkeypatch.setattr(usage, "MOST_ELSEWHERE", 10)
    monkeypatch.setenv("PRECAST_USES_DIR", str(tmp_path / "uses"))
    for _ in range(3):
        filled.used(ids[0])
    (file,) = (tmp_path / "uses").iterdir()
    assert len(usage.lines(file.read_bytes())) == 1


def test_brought_in_they_count_once_and_spare_from_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ids = fill(tmp_path / "s", 3)
    store.used(ids[1])
    old(store)
    folder = tmp_path / "uses"
    folder.mkdir()
    now = int(time.time())
    (folder / "web1.uses").write_text(f"{ids[0]} {now}\n{ids[0]} {now}\nabc 1\n{ids[1]} {now - int(50 * DAY)}\n{ids[2][:9]}")
    (folder / "web2.uses").write_text(f"{ids[0]} {now - 5}\n")
    assert "Read what 2 machines used; that of 2 was new" in run("uses", "--import", folder, "--store", store.root).stderr
    assert "nothing of it was new" in run("uses", "--import", folder / "web1.uses", "--import", folder, "--store", store.root).stderr
    assert hits(store) == {ids[0]: 3, ids[1]: 2, ids[2]: 0}
    assert hits(Store.open(store.root, readonly=True)) == hits(store)
    rows = json.loads(run("uses", "--store", store.root, "--json").stdout)
    assert [(row["machine"], row["artifacts"], row["hits"]) for row in rows] == [("web1", 2, 3), ("web2", 1, 1)]
    (folder / "web2.uses").write_text(f"{ids[0]} {now}\n" * 4)  # totals grow
    run("uses", "--import", folder, "--store", store.root)
    assert hits(store)[ids[0]] == 6
    done = prune(store, Policy(unused_for=30 * DAY))
    assert [removal.entry.artifact_id for removal in done.removed] == [ids[2]]


@pytest.mark.parametrize("repaired", [True, False])
def test_what_machines_told_outlives_a_damaged_index(repaired: bool, tmp_path: Path) -> None:
    store, ids = fill(tmp_path / "s", 1)
    machine_uses.keep(store.root, "web1", {ids[0]: Uses(2, 5.0)})
    assert hits(store) == {ids[0]: 2}
    (store.root / "index" / "cache.db").write_bytes(os.urandom(5000))
    if repaired:
        verify(store, repair=True)
    assert hits(store) == {ids[0]: 2}


def test_what_is_damaged_is_left_out_and_can_be_brought_in_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, ids = fill(tmp_path / "s", 1)
    machine_uses.keep(store.root, "web1", {ids[0]: Uses(2, 5.0)})
    (store.root / "index" / "machines" / "web1").write_bytes(b"garbage")
    assert hits(store) == {ids[0]: 0} and "what machine web1 used is not counted" in caplog.text
    assert machine_uses.keep(store.root, "web1", {ids[0]: Uses(2, 5.0)}) and hits(store) == {ids[0]: 2}


def test_totals() -> None:
    one, other = {A: Uses(2, 5.0), B: Uses(1, 1.0)}, {A: Uses(1, 9.0)}
    assert later(one, other) == later(other, one) == {A: Uses(2, 9.0), B: Uses(1, 1.0)}
    assert added(one, other) == {A: Uses(3, 9.0), B: Uses(1, 1.0)}
    assert from_bytes(to_bytes(one), "here") == one


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        pack(3),
        pack(["precast-uses", 2, {}]),
        pack(["precast-uses", 1, []]),
        pack(["precast-uses", 1, {"abc": [1, 1.0]}]),
        pack(["precast-uses", 1, {A: [1, 1]}]),
        pack(["precast-uses", 1, {A: [-1, 1.0]}]),
        pack(["precast-uses", 1, {A: [1, 1e30]}]),
        pack(["precast-uses", 1, {A: [1, float("nan")]}]),
        pack(["precast-uses", 1, {A: [True, 1.0]}]),
        pack(["precast-uses", 1, {A: [1, 1.0, 1]}]),
    ],
)
def test_what_is_no_uses_is_refused(content: bytes) -> None:
    with pytest.raises(DamagedRecord):
        from_bytes(content, "here")


@pytest.mark.parametrize("text", ["", "hello\n", f"{A}\n"])
def test_a_file_without_uses_is_a_slip(text: str, tmp_path: Path) -> None:
    store, _ = fill(tmp_path / "s", 1)
    (tmp_path / "web1.uses").write_text(text)
    assert "no uses in it" in run("uses", "--import", tmp_path / "web1.uses", "--store", store.root, code=1).stderr
    assert "cannot be read" in run("uses", "--import", tmp_path / "none.uses", "--store", store.root, code=1).stderr
    (tmp_path / "empty").mkdir()
    assert "no files *.uses in it" in run("uses", "--import", tmp_path / "empty", "--store", store.root, code=1).stderr
    (tmp_path / "-x.uses").write_text(f"{A} 5\n")
    assert "is named after no machine" in run("uses", "--import", tmp_path / "-x.uses", "--store", store.root, code=1).stderr


def test_processes_tell_a_remote_what_they_used() -> None:
    endpoint = MemoryEndpoint()
    one, other = Report(endpoint, "web1", first=0.05), Report(endpoint, "web1", first=0.05)
    for _ in range(3):
        one.note(A)
        other.note(A)
    other.note(B)
    deadline = time.monotonic() + 10
    while usage_report.read(endpoint, "web1").get(A, Uses(0, 0.0)).hits < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert {name: uses.hits for name, uses in usage_report.read(endpoint, "web1").items()} == {A: 6, B: 1}
    assert Report(endpoint)._machine.endswith(usage_report.LIVE)
    one.close(), other.close()


def test_what_could_not_be_told_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = MemoryEndpoint()
    report = Report(endpoint, "web1", first=1000)

    def broken(verb: str, name: str) -> None:
        raise Unreachable("no answer")

    endpoint.before = broken
    report.note(A)
    report.flush()
    report.note(A)
    endpoint.before = lambda *_: None
    report.flush()
    report.flush()
    report.close()
    assert usage_report.read(endpoint, "web1")[A].hits == 2


def test_a_damaged_report_is_left_out_and_begun_anew(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = MemoryEndpoint()
    endpoint.put(layout.usage_name("web1"), b"garbage")
    usage_report.add(endpoint, "web2", {A: Uses(1, 1.0)})
    assert usage_report.read_all(endpoint) == {"web2": {A: Uses(1, 1.0)}} and "what machine web1 used is not known" in caplog.text
    usage_report.add(endpoint, "web1", {B: Uses(1, 1.0)})
    assert usage_report.read_all(endpoint).keys() == {"web1", "web2"}


def test_without_compare_and_swap_it_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = MemoryEndpoint()

    def none(*_: Any) -> bool:
        raise Unsupported("no such verb")

    monkeypatch.setattr(endpoint, "put_new", none)
    monkeypatch.setattr(endpoint, "replace", none)
    for _ in range(2):
        usage_report.add(endpoint, "web1", {A: Uses(1, 1.0)})
    assert usage_report.read(endpoint, "web1") == {A: Uses(2, 1.0)}


def test_a_store_tells_its_totals_to_a_remote_and_another_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a copy of its own; the build machine's store, from which it was copied, learns what is used. Over a shared folder."""
    server, ids = fill(tmp_path / "server", 2)
    built, _ = fill(tmp_path / "built", 2)
    (tmp_path / "shared").mkdir()
    url = f"shared://{tmp_path / 'shared'}?trust=any"
    server.used(ids[0])
    monkeypatch.setenv("PRECAST_USES_DIR", str(tmp_path / "uses"))
    server.used(ids[1])
    for _ in range(2):
        assert "used 2 artifacts" in run("uses", "--push", url, "--machine", "web1", "--store", server.root).stderr
        run("uses", "--import", url, "--store", built.root)
    assert hits(built) == {ids[0]: 1, ids[1]: 1}
    run("uses", "--push", url, "--machine", "a/b", "--store", server.root, code=2)
    monkeypatch.delenv("PRECAST_USES_DIR")
    unused, _ = fill(tmp_path / "unused", 1)
    assert "no use was counted" in run("uses", "--push", url, "--store", unused.root).stderr
