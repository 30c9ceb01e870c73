"""Real artifacts of released versions (tests/store/real.py makes them): today's code reads each, and runs those of
its own versions.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Manifest, Store
from precast.artifact_store.format.records import FrameRecord, GraphInput, GraphOutput
from precast.runtime.common.errors import GuardMiss
from precast.runtime.frames.rewritten_code import FrameCodeError, build
from precast.runtime.guards.evaluate import first_failing
from precast.runtime.programs import compile_hook as runtime_compiler
from precast.runtime.targets import versions as compatibility
from precast.runtime.targets.shared_object import is_whole
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor, why_unfit
from tests.store import real

STORES = sorted(path for path in real.FIXTURES.iterdir() if path.is_dir())
SIZE = 100_000


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    shutil.copytree(request.param, tmp_path / "store")
    return Store.open(tmp_path / "store", strict=True)


def only(store: Store) -> Manifest:
    (manifest,) = store.manifests()
    return manifest


def expected_reason(manifest: Manifest) -> str:
    """What keeps the artifact from running here, by its versions alone."""
    versions = manifest.versions
    if versions.torch != torch_minor():
        return f"it was compiled for torch {versions.torch}"
    if versions.python != python_minor():
        return f"its bytecode is for Python {versions.python}"
    if versions.lowering != LOWERING_VERSION:
        return f"it was made by lowering version {versions.lowering}"
    return ""


def test_there_is_one_and_each_is_small_and_names_no_machine() -> None:
    assert STORES
    for path in STORES:
        data = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
        assert sum(map(len, data)) < SIZE
        for word in (b"/tmp/", b"/home/", b"/root/", b"/usr/", str(Path(__file__).parents[2]).encode()):
            assert not [item for item in data if word in item], f"{path.name} names {word.decode()}"


def test_records_guards_and_blobs_are_read(store: Store) -> None:
    manifest = only(store)
    manifest.check()
    assert manifest.target == "cpu:x86-64-v2" and store.complete(manifest)
    graph = manifest.graphs["forward"]
    library, schedule = store.blob(graph.library), store.blob(graph.blobs["schedule"])
    assert library is not None and is_whole(library) and schedule
    (frame,) = manifest.frames
    assert [GraphInput.from_data(item).position for item in frame["inputs"]] == [0]
    assert [(output.kind, output.index) for output in map(GraphOutput.from_data, frame["outputs"])] == [("raw", 0)]
    assert any("shifted" in name for name in manifest.digests)
    (x,) = real.call()
    values: dict[str, Any] = {"x": x, "scale": 2.0}
    with torch.no_grad():
        assert first_failing(manifest.guards, values) == -1
        assert first_failing(manifest.guards, {**values, "scale": 3.0}) != -1
        assert first_failing(manifest.guards, {**values, "x": x.double()}) != -1


def test_the_frame_is_rebuilt(store: Store) -> None:
    record = FrameRecord.from_data(dict(only(store).frames[0]["code"]))
    (x,) = real.call()
    if record.python != python_minor():
        with pytest.raises(FrameCodeError, match=f"for Python {record.python}"):
            build(record, real.program, lambda *inputs: inputs)
        return
    seen: list[torch.Tensor] = []
    function = build(record, real.program, lambda y: (seen.append(y), (y + 1,))[1])  # stands in for the graph
    torch.testing.assert_close(function(x), x + 1)
    assert len(seen) == 1 and seen[0] is x


@torch.no_grad()
def test_it_runs_or_is_a_miss_that_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_compiler, "_compiler", lambda *_: pytest.fail("it compiles"))
    manifest, reason = only(store), expected_reason(only(store))
    assert why_unfit(manifest).startswith(reason) and bool(why_unfit(manifest)) == bool(reason)
    served = precast.load(real.program, store=store, require="hit")
    if reason:
        with pytest.raises(GuardMiss):
            served(*real.call())
        return
    for _ in range(4):
        torch.testing.assert_close(served(*real.call()), real.program(*real.call()))
    with pytest.raises(GuardMiss):
        served(real.call()[0][:2])


@pytest.mark.parametrize(
    ("part", "reason"),
    [("torch", "it was compiled for torch"), ("python", "its bytecode is for Python"), ("lowering", "it was made by lowering version")],
)
def test_other_versions_miss(store: Store, part: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here are the artifact's own versions but for one: that one alone keeps it from running, and is named."""
    manifest = only(store)
    here = {"torch": manifest.versions.torch, "python": manifest.versions.python, "lowering": manifest.versions.lowering}

    def run_with(versions: dict[str, Any]) -> str:
        monkeypatch.setattr(compatibility, "torch_minor", lambda: versions["torch"])
        monkeypatch.setattr(compatibility, "python_minor", lambda: versions["python"])
        monkeypatch.setattr(compatibility, "LOWERING_VERSION", versions["lowering"])
        return why_unfit(manifest)

    assert run_with(here) == ""
    assert run_with({**here, part: "0.0"}) == f"{reason} {here[part]}, and this {_THIS[part]} 0.0"


_THIS = {"torch": "is torch", "python": "is Python", "lowering": "precast has"}
