"""Leases between processes: one works, the others wait; the dead are succeeded."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from precast.artifact_store import Store
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.local import leases

ROOT = str(Path(__file__).parents[2])
NAME = "ab" * 32
HOLDER = """
import sys, time
from pathlib import Path
from precast.artifact_store import Store
store = Store.open(sys.argv[1])
with store.lease(sys.argv[2]) as lease:
    print("held" if lease.held else "not held", flush=True)
    time.sleep(float(sys.argv[3]))
    (store.root / "let_go").touch()
"""
WORKER = """
import sys, time
from pathlib import Path
from precast.artifact_store import Store
from tests.artifact_store.sample import make
store = Store.open(sys.argv[1])
manifest, blobs = make()
with store.lease(manifest.artifact_id):
    if store.get(manifest.artifact_id) is None:
        with open(sys.argv[2], "a") as log:
            log.write("compiled\\n")
        time.sleep(0.2)
        store.put(manifest, blobs)
assert store.get(manifest.artifact_id) is not None
"""


def _start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ROOT}, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _hold(store: Store, seconds: float) -> subprocess.Popen[str]:
    process = _start(HOLDER, store.root, NAME, seconds)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_five_processes_compile_once(tmp_path: Path) -> None:
    processes = [_start(WORKER, tmp_path / "s", tmp_path / "log") for _ in range(5)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 5
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    assert (tmp_path / "log").read_text() == "compiled\n"
    assert list((tmp_path / "s" / "leases").iterdir()) == []


def test_waits_until_it_is_released(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    with _hold(store, 0.5), store.lease(NAME) as lease:
        assert lease.held and (store.root / "let_go").exists()


def test_takes_over_from_a_killed_process_at_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    with _hold(store, 60) as process:
        process.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    with store.lease(NAME) as lease:
        assert lease.held
    assert time.monotonic() - begin < 5 < leases.EXPIRY


def test_goes_on_without_it_after_the_timeout(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    with _hold(store, 60) as process:
        with store.lease(NAME, timeout=0.3) as lease:
            assert not lease.held and lease.waited >= 0.3
        assert (store.root / "leases" / NAME).exists()  # still the other's
        process.kill()


def _of_another_machine(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(pack({"token": "t", "pid": 1, "place": "another machine", "started": ""}))


def test_takes_over_when_another_machine_stops_beating(tmp_path: Path) -> None:
    """Judged by the waiter's own clock: the file's time is a year off, and only its standing still counts."""
    path = tmp_path / "leases" / NAME
    _of_another_machine(path)
    os.utime(path, (time.time() + 3e7, time.time() + 3e7))
    begin = time.monotonic()
    with leases.acquire(tmp_path / "leases", NAME, expiry=0.4) as lease:
        assert lease.held and 0.4 <= time.monotonic() - begin < 5


def test_does_not_take_over_while_the_other_beats(tmp_path: Path) -> None:
    path = tmp_path / "leases" / NAME
    _of_another_machine(path)
    stop = threading.Event()
    beat = threading.Thread(target=leases._beat, args=(path, leases._holder(path)["token"], stop, 0.05))
    beat.start()
    try:
        with leases.acquire(tmp_path / "leases", NAME, timeout=2.5, expiry=1.5) as lease:
            assert not lease.held
    finally:
        stop.set()
        beat.join()


def test_a_holder_keeps_beating(tmp_path: Path) -> None:
    with leases.acquire(tmp_path, NAME, expiry=0.2):
        path = tmp_path / NAME
        first = path.stat().st_mtime_ns
        deadline = time.monotonic() + 20
        while path.stat().st_mtime_ns == first:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert unpack(path.read_bytes())["pid"] == os.getpid()
    assert not path.exists()


def test_released_when_the_work_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), leases.acquire(tmp_path, NAME):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_release_its_parents(tmp_path: Path) -> None:
    manager = leases.acquire(tmp_path, NAME)
    with manager:
        child = os.fork()
        if child == 0:
            manager.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / NAME).exists()


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []
    most = []

    def work() -> None:
        with leases.acquire(tmp_path, NAME) as lease:
            assert lease.held
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_where_leases_cannot_be_kept_work_goes_on(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file where the folder should be")
    with leases.acquire(tmp_path / "leases", NAME) as lease:
        assert not lease.held


def test_a_holder_that_lost_it_keeps_nobody_elses_alive(tmp_path: Path) -> None:
    lease = leases.Watch(tmp_path / "leases" / "one").look()
    assert lease is not None
    lease.keep(expiry=0.2)
    other = tmp_path / "leases" / "other"
    other.write_bytes(pack({"token": "another's"}))
    os.replace(other, lease.path)
    os.utime(lease.path, (1.0, 1.0))
    time.sleep(0.5)
    assert lease.path.stat().st_mtime == 1.0
    lease.release()


def test_a_dead_holders_lease_that_cannot_be_taken_away_is_gone_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "leases" / "one"
    path.parent.mkdir()
    path.write_bytes(pack({"token": "dead", **leases.identity(), "started": "another time"}))

    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", refuse)
        lease = leases.Watch(path).look()
    assert lease is not None and not lease.held


@pytest.fixture(params=["links", "no links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without hard links."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if request.param == "no links":
        monkeypatch.setattr(os, "link", refuse)


def test_one_taker_and_nothing_left_over(tmp_path: Path, links: None) -> None:
    one, other = leases.Watch(tmp_path / "leases" / "one"), leases.Watch(tmp_path / "leases" / "one")
    lease = one.look()
    assert lease is not None and lease.held and other.look() is None
    assert other.who.startswith(f"process {os.getpid()} on")
    assert os.listdir(tmp_path / "leases") == ["one"]
    assert stat.S_IMODE((tmp_path / "leases" / "one").stat().st_mode) == 0o600
    lease.release()
    assert os.listdir(tmp_path / "leases") == []
    assert (again := other.look()) is not None and again.held


def test_a_full_disk_leaves_no_lease_that_names_nobody(tmp_path: Path, links: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        lease = leases.Watch(tmp_path / "leases" / "one").look()
    assert lease is not None and not lease.held, "work goes on without it"
    assert os.listdir(tmp_path / "leases") == []


def test_the_folders_that_it_makes_are_private(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "s")
    before = os.umask(0o002)
    try:
        with store.lease(NAME) as lease:
            assert lease.held
    finally:
        os.umask(before)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (store.root, store.root / "leases")] == [0o700, 0o700]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nothing can be made: /proc")
def test_where_the_folder_cannot_be_made_work_goes_on() -> None:
    with leases.acquire(Path("/proc/precast/leases"), NAME) as lease:
        assert not lease.held


@pytest.mark.parametrize("content", [b"", b"\x00", b"rubbish" * 100])
def test_rubbish_in_a_lease_expires(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with leases.acquire(tmp_path, NAME, expiry=0.2) as lease:
        assert lease.held
