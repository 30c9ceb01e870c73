"""Prunes beside writers and readers, each a process, and some of them killed: nothing that is there lacks a blob, nobody crashes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Store
from precast.artifact_store.maintenance import garbage
from precast.artifact_store.maintenance import prune as pruning
from precast.artifact_store.maintenance.pins import pin
from precast.artifact_store.maintenance.prune import Policy, prune
from precast.artifact_store.maintenance.verify import verify
from precast.artifact_store.tiers.folder import Folder
from tests.artifact_store.sample import complete, fill, make

ROOT = str(Path(__file__).parents[3])
KEY = "model-0123abcd"
WRITER = """
import random, sys
from precast.artifact_store import Store
from tests.artifact_store.sample import make
store, chance = Store.open(sys.argv[1]), random.Random(int(sys.argv[2]))
while True:
    store.put(*make(chance.randrange(12), size=3000))
"""
READER = """
import sys, time
from precast.artifact_store import Store
from precast.artifact_store.format.layout import manifest_name
store, end = Store.open(sys.argv[1]), time.monotonic() + float(sys.argv[2])
pinned, seen = sys.argv[3], 0
while time.monotonic() < end:
    found = store.variants("model-0123abcd")
    assert pinned in {manifest.artifact_id for manifest in found}
    for manifest in found:
        store.used(manifest.artifact_id)
        whole = all(store.blob(blob) is not None for blob in manifest.blobs)
        assert whole or manifest.artifact_id != pinned
        seen += whole
assert seen
"""
PRUNER = """
import sys, time
from precast.artifact_store import Store, StoreError
from precast.artifact_store.maintenance.prune import Policy, prune
store, refused = Store.open(sys.argv[1]), 0
while refused < 100:
    try:
        prune(store, Policy(max_size=12_000), grace=0.0 if sys.argv[2] == "0" else 3600.0)
        refused = 0
    except StoreError as error:  # the index is locked by another, or was left by one that was killed, for a moment
        assert "not known which artifacts were used" in str(error), error
        refused, said = refused + 1, str(error)
        time.sleep(0.1)
raise SystemExit(f"the index cannot be used any more: {said}")
"""


def _start(program: str, *words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ROOT}, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_writers_readers_and_prunes_of_which_some_are_killed(tmp_path: Path) -> None:
    store, (kept,) = fill(tmp_path / "s", 1)
    pin(store, kept)
    chance, root = random.Random(11), store.root
    reader = _start(READER, root, 6, kept)
    others = [(WRITER, 1), (WRITER, 2), (PRUNER, 1), (PRUNER, 1)]
    running = [_start(program, root, word) for program, word in others]
    failures: list[str] = []
    try:
        while reader.poll() is None:
            time.sleep(chance.uniform(0.3, 0.8))
            number = chance.randrange(len(running))
            one = running[number]
            if one.poll() is None:
                one.send_signal(signal.SIGKILL)
            _, said = one.communicate()
            failures += [said] if one.returncode != -signal.SIGKILL else []
            running[number] = _start(others[number][0], root, others[number][1])
    finally:
        for one in (*running, reader):
            if one is not reader and one.poll() is None:
                one.send_signal(signal.SIGKILL)
            _, said = one.communicate()
            failures += [said] if one.returncode not in (0, -signal.SIGKILL) else []
    assert failures == []
    assert reader.returncode == 0
    report = verify(Store.open(root, strict=True))
    assert [problem for problem in report.problems if problem.kind not in ("leftover", "index")] == [] and report.quarantined == []
    assert kept in {manifest.artifact_id for manifest in store.variants(KEY)}
    prune(store, Policy(), now=time.time() + 7200)
    assert list(root.rglob(".tmp-*")) == []
    assert all(complete(store, manifest) for manifest in Store.open(root).variants(KEY))


# at which of a prune's steps the writer's manifest comes
STEPS = ("manifests are removed", "blobs are moved aside", "manifests are looked through again", "blobs are unlinked")


@pytest.mark.parametrize("step", STEPS)
def test_a_manifest_that_comes_at_any_step_of_a_prune_is_whole(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer has found the shared blobs there, and is held until the prune is at this step."""
    store, (first,) = fill(tmp_path / "s")
    at_manifest, go_on = threading.Event(), threading.Event()
    whole = Folder.put

    def put(self: Folder, name: str, data: bytes, mode: int = 0o600) -> None:
        if name.startswith("programs/"):
            at_manifest.set()
            assert go_on.wait(20)
        whole(self, name, data, mode)

    monkeypatch.setattr(Folder, "put", put)
    writer = threading.Thread(target=lambda: Store.open(store.root).put(*make(1)))
    writer.start()
    assert at_manifest.wait(20)

    def now() -> None:
        go_on.set()
        writer.join(20)

    def before(owner: Any, name: str, matches: Any = lambda *_: True) -> None:
        original = getattr(owner, name)

        def wrapped(*words: Any, **more: Any) -> Any:
            if matches(*words):
                now()
            return original(*words, **more)

        monkeypatch.setattr(owner, name, wrapped)

    asides = [0]

    def again(*_: Any) -> bool:
        asides[0] += 1
        return asides[0] == 2

    match step:
        case "manifests are removed":
            before(pruning, "remove")
        case "blobs are moved aside":
            before(os, "rename", lambda path, *_: "/objects/" in str(path))
        case "manifests are looked through again":
            before(garbage, "manifest_files", again)
        case _:
            before(pruning, "_unlink")
    done = prune(store, Policy(max_size=0))
    now()
    (left,) = Store.open(store.root).variants(KEY)
    assert first in {removal.entry.artifact_id for removal in done.removed} and left.artifact_id != first
    assert complete(Store.open(store.root), left), step
    assert verify(store).problems == []


def test_verify_in_several_processes_tells_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from precast.artifact_store.maintenance import verify as verification

    store, ids = fill(tmp_path / "s", 30)
    paths = sorted(path for folder in ("objects", "programs") for path in (store.root / folder).rglob("*") if path.is_file())
    for path in (paths[0], paths[-1]):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    (store.root / "programs" / KEY / "copy.msgpack").write_bytes(paths[-2].read_bytes())
    alone = verify(store)
    monkeypatch.setattr(verification, "_MANY", 5)
    together = verify(store, jobs=2)
    assert together == alone and {problem.kind for problem in alone.problems} == {"damaged", "incomplete", "foreign"}
    assert len(ids) == 30 and together.manifests == 31
