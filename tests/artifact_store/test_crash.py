"""What a store is after kill -9, on a full disk, and under two writers: every artifact that can be seen is whole."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precast.artifact_store import Store, StoreError
from precast.artifact_store.maintenance.verify import verify
from tests.artifact_store.sample import complete, fill, make, snapshot

ROOT = str(Path(__file__).parents[2])
KEY = "model-0123abcd"
WRITER = """
import sys
from precast.artifact_store import Store
from tests.artifact_store.sample import make
store = Store.open(sys.argv[1])
Store.open(sys.argv[1] + "-before").put(*make())  # what a first put imports is there
print("ready", flush=True)
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.put(*make(number, size=200_000))
    print(number, flush=True)
"""


def _writer(root: Path, first: int, last: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": ROOT}
    command = [sys.executable, "-c", WRITER, str(root), str(first), str(last)]
    return subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _all_whole(root: Path) -> int:
    store = Store.open(root, strict=True)
    manifests = store.variants(KEY)
    assert all(complete(store, manifest) for manifest in manifests)
    problems = [problem for problem in verify(store).problems if problem.kind != "leftover"]
    assert problems == []
    return len(manifests)


def test_kill_9_while_writing(tmp_path: Path) -> None:
    """Killed at random moments, over and over: what was reported as stored is there, and nothing half-made can be seen."""
    root = tmp_path / "s"
    chance = random.Random(7)
    reported = 0
    for number in range(12):
        process = _writer(root, 1000 * number, 1000 * number + 1000)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.12))
        process.send_signal(signal.SIGKILL)
        reported += len(process.stdout.read().splitlines())
        process.wait()
        process.stdout.close()
        assert _all_whole(root) >= reported
    assert reported > 0
    verify(Store.open(root), repair=True)
    assert _all_whole(root) >= reported


def test_two_writers_and_a_reader(tmp_path: Path) -> None:
    """Both write the same artifacts at once, one half of another's besides, while this process reads."""
    root = tmp_path / "s"
    processes = [_writer(root, 0, 40), _writer(root, 0, 40), _writer(root, 20, 60)]
    seen = 0
    while any(process.poll() is None for process in processes):
        store = Store.open(root)
        found = store.variants(KEY)
        assert all(complete(store, manifest) for manifest in found)
        assert len(found) >= seen
        seen = len(found)
    for process in processes:
        assert process.wait() == 0
        assert process.stdout is not None
        process.stdout.close()
    assert _all_whole(root) == 60
    assert list(root.rglob(".tmp-*")) == []


def _put_under_a_size_limit(root: Path, limit: int) -> int:
    """In a child whose files may not grow past `limit` bytes, as when a disk fills up. 0: refused cleanly; 1: stored; 2: neither."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            store = Store.open(root)
            try:
                store.put(*make(5, size=50_000))
                status = 1
            except StoreError as error:
                status = 0 if "cannot write to the store" in str(error) else 2
                assert store.try_put(*make(5, size=50_000))
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("limit", [0, 1, 100, 4096, 49_999])
def test_a_disk_that_fills_up(tmp_path: Path, limit: int) -> None:
    store, ids = fill(tmp_path / "s", 2)
    before = snapshot(store.root)
    assert _put_under_a_size_limit(store.root, limit) == 0
    after = snapshot(store.root)
    assert not [name for name in after if ".tmp-" in name]
    assert {name: after[name] for name in before} == dict(before)
    assert [manifest.artifact_id for manifest in store.variants(KEY)] == sorted(ids)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 256 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    done = subprocess.run(
        [mount or "false", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"mounting a small tmpfs needs root ({done.stderr.strip()}); the size limits above cover the same path")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_filesystem(small_disk: Path) -> None:
    store = Store.open(small_disk / "s")
    stored = 0
    with pytest.raises(StoreError, match=os.strerror(errno.ENOSPC)):
        for number in range(20):
            store.put(*make(number, size=60_000))
            stored += 1
    assert stored >= 2
    assert _all_whole(store.root) == stored
    store.used(store.variants(KEY)[0].artifact_id)
    assert store.try_put(*make(99, size=60_000))
