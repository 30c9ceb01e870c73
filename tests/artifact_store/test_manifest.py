"""Manifests: the schema's errors, what changes the id and what does not, damage, and formats of every release."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.artifact_store import GraphRecord, Guard, Manifest, Predicate, Store
from precast.artifact_store.format.errors import DamagedRecord, ForeignRecord, FutureFormat, RecordError
from precast.artifact_store.format.guards import canonical_order
from precast.artifact_store.format.manifest import MAGIC, Versions
from precast.artifact_store.format.msgpack import pack, unpack
from tests.artifact_store.sample import GUARDS, VERSIONS, complete, make

FIXTURES = Path(__file__).parent / "fixtures"
ID_OF_FORMAT_1 = "d02bec87031f5d6d47b83dbfef02e72c39ed1fdd864a66bef017ec521153cf64"


def test_everything_comes_back() -> None:
    manifest, blobs = make()
    again = Manifest.from_bytes(manifest.to_bytes(), expect_id=manifest.artifact_id)
    assert again.artifact_id == manifest.artifact_id
    assert again.guards == canonical_order(Guard.from_data(guard.to_data()) for guard in GUARDS)
    assert (again.program_key, again.program_name, again.target, again.versions) == ("model-0123abcd", "model", "cpu:x86-64-v3", VERSIONS)
    assert again.options == {"freeze": False, "number": 0}
    assert again.waived == ("guard on self.counter",)
    assert again.digests == {"app:helper": "ab" * 32}
    assert again.frames[0]["code"] == b"\x00\x01"
    assert again.graphs["forward"].library in blobs
    assert again.graphs["forward"].io["workspace"] == 4096
    assert again.evidence == {"choices": {"mm_0": "onednn"}}
    assert again.provenance == {"source": "app.py:12"}
    assert again.blobs == blobs.sizes()
    again.check()


CHANGES_THE_ID: dict[str, dict[str, Any]] = {
    "program key": {"program_key": "other"},
    "target": {"target": "cpu:x86-64-v4"},
    "lowering version": {"versions": replace(VERSIONS, lowering="2")},
    "torch minor": {"versions": replace(VERSIONS, torch="2.12")},
    "python minor": {"versions": replace(VERSIONS, python="3.12")},
    "no bytecode": {"versions": replace(VERSIONS, python=None)},
    "compiler": {"versions": replace(VERSIONS, compiler="clang 19")},
    "an option": {"options": {"freeze": True, "number": 0}},
    "an option's type": {"options": {"freeze": 0, "number": 0}},
    "a guard less": {"guards": GUARDS[1:]},
    "a guard's constant": {"guards": (*GUARDS[1:], Guard(GUARDS[0].path, GUARDS[0].predicate, {"dtype": "float64"}))},
    "a guard's type": {"guards": (*GUARDS[2:], GUARDS[0], Guard(GUARDS[1].path, Predicate.EQUALS, ("int", 0)))},
    "a waiver": {"waived": []},
    "inlined code": {"digests": {"app:helper": "cd" * 32}},
}
KEEPS_THE_ID: dict[str, dict[str, Any]] = {
    "guards in another order": {"guards": GUARDS[::-1]},
    "a guard twice": {"guards": (*GUARDS, GUARDS[0])},
    "program name": {"program_name": "renamed"},
    "evidence": {"evidence": {"choices": {"mm_0": "mkl"}}},
    "provenance": {"provenance": {"source": "/elsewhere/app.py:99", "host": "b", "time": 1.0}},
    "precast version": {"precast_version": "9.9"},
    "options in another order": {"options": {"number": 0, "freeze": False}},
    "frames": {"frames": []},
    "compiled code": {"graphs": {}, "blobs": {}},
}


@pytest.mark.parametrize("change", CHANGES_THE_ID)
def test_changes_the_id(change: str) -> None:
    assert make(**CHANGES_THE_ID[change])[0].artifact_id != make()[0].artifact_id


@pytest.mark.parametrize("change", KEEPS_THE_ID)
def test_keeps_the_id(change: str) -> None:
    assert make(**KEEPS_THE_ID[change])[0].artifact_id == make()[0].artifact_id


def test_the_id_is_the_same_in_every_process(tmp_path: Path) -> None:
    code = "from tests.artifact_store.sample import make; m = make()[0]; print(m.artifact_id, m.guard_hash)"
    root = str(Path(__file__).parents[2])
    seen = set()
    for seed in ("0", "1", "77"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root, "HOSTNAME": f"host{seed}", "USER": f"user{seed}"}
        seen.add(subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout)
    manifest = make()[0]
    assert seen == {f"{manifest.artifact_id} {manifest.guard_hash}\n"}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"program_key": "../escape"}, ValueError, "cannot be a folder name"),
        ({"program_key": ".hidden"}, ValueError, "cannot be a folder name"),
        ({"target": 3}, ValueError, "field 'target' has an unexpected value of type int"),
        ({"options": [1]}, ValueError, "field 'options'"),
        ({"options": {"f": print}}, TypeError, "head.options.f: builtins.builtin_function_or_method is not plain data"),
        ({"digests": {"a": 1}}, ValueError, "field 'digests'"),
        ({"frames": ["x"]}, ValueError, "field 'frames'"),
        ({"blobs": {"abc": 1}}, ValueError, "field 'blobs'"),
        ({"blobs": {}}, ValueError, "which is not in the artifact's blob list"),
        ({"graphs": {"forward": GraphRecord({"library": 7}, {})}}, ValueError, "field 'graphs'"),  # type: ignore[dict-item]
        ({"versions": Versions(lowering="1", torch=2.13, python=None, compiler="")}, ValueError, "field 'versions'"),  # type: ignore[arg-type]
        ({"guards": [Guard((("local", "x"),), "sounds_like", 1)]}, ValueError, "unknown predicate 'sounds_like'"),  # type: ignore[arg-type]
        ({"evidence": {"t": object()}}, TypeError, "info.evidence.t"),
    ],
)
def test_schema_errors_name_the_field(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        make(**changes)
    assert words in str(caught.value)


def _envelope(**changes: Any) -> bytes:
    outer = list(unpack(make()[0].to_bytes()))
    for position, value in changes.items():
        outer[int(position[1:])] = value
    return pack(outer)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", ForeignRecord),
        (b"\x7fELF" * 30, ForeignRecord),
        (pack({"magic": MAGIC}), ForeignRecord),
        (_envelope(_1=2), FutureFormat),
        (_envelope(_1=0), DamagedRecord),
        (_envelope(_1="1"), DamagedRecord),
        (_envelope(_2=b"0" * 32), DamagedRecord),
        (_envelope(_3=b""), DamagedRecord),
        (_envelope(_5="text"), DamagedRecord),
        (pack([MAGIC, 1]), DamagedRecord),
        (pack([MAGIC, 2, "anything else"]), FutureFormat),
    ],
)
def test_bytes_that_are_no_manifest(data: bytes, error: type[RecordError]) -> None:
    with pytest.raises(error):
        Manifest.from_bytes(data)


def test_another_id_than_expected() -> None:
    with pytest.raises(DamagedRecord, match="holds artifact"):
        Manifest.from_bytes(make()[0].to_bytes(), expect_id="0" * 64)


WHOLE = make()[0].to_bytes()


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 7))
def test_every_flipped_bit_is_found(place: int, bit: int) -> None:
    data = bytearray(WHOLE)
    data[place] ^= 1 << bit
    with pytest.raises(RecordError):
        Manifest.from_bytes(bytes(data), expect_id=make()[0].artifact_id)


@given(st.integers(0, len(WHOLE) - 1))
def test_every_truncation_is_found(length: int) -> None:
    with pytest.raises(RecordError):
        Manifest.from_bytes(WHOLE[:length])


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_cleanly(data: bytes) -> None:
    with pytest.raises(RecordError):
        Manifest.from_bytes(data)


def test_format_1_loads_for_ever(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "format1", tmp_path / "store")
    store = Store.open(tmp_path / "store", strict=True)
    assert store.programs() == ["model-0123abcd"]
    first, second = sorted(store.variants("model-0123abcd"), key=lambda manifest: manifest.options["number"])
    assert first.artifact_id == ID_OF_FORMAT_1
    assert first.format == 1
    assert first.versions == VERSIONS
    assert first.guards == canonical_order(Guard.from_data(guard.to_data()) for guard in GUARDS)
    assert first.frames[0]["name"] == "forward"
    assert store.blob(first.graphs["forward"].kernel_source) == b"void kernel() {}"
    assert complete(store, first) and complete(store, second)
    first.check()


def test_a_completed_manifest_is_the_one_that_would_have_been_made() -> None:
    whole, _ = make(5)
    planned, _ = make(5, graphs={}, blobs={}, evidence={}, provenance={})
    done = planned.completed(graphs=whole.graphs, blobs=whole.blobs, evidence=whole.evidence, provenance=whole.provenance)
    assert done.to_bytes() == whole.to_bytes() and planned.artifact_id == whole.artifact_id
    assert Manifest.from_bytes(done.to_bytes()).graphs.keys() == {"forward"}


def test_a_manifest_is_not_completed_with_blobs_that_it_does_not_list() -> None:
    whole, _ = make(5)
    with pytest.raises(ValueError, match="which is not in the artifact's blob list"):
        whole.completed(graphs=whole.graphs, blobs={}, evidence={}, provenance={})


def test_completing_a_manifest_leaves_its_guards_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = make(5)
    for name in ("canonical_order", "pack_guards", "guard_hash"):
        monkeypatch.delattr(f"precast.artifact_store.format.manifest.{name}")
    assert whole.completed(graphs={}, blobs={}, evidence={}, provenance={}).guard_hash == whole.guard_hash
