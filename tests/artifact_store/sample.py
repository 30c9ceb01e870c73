"""Small artifacts for the store's tests, of plain data. `python -m tests.artifact_store.sample DIR` writes the fixture of the present
format.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precast.artifact_store import BlobSet, GraphRecord, Guard, Manifest, Predicate, Store, Versions

GUARDS = (
    Guard((("local", "x"),), Predicate.TENSOR, {"dtype": "float32", "size": [4, None], "device": "cpu"}),
    Guard((("local", "self"), ("attr", "training")), Predicate.EQUALS, ("bool", False)),
    Guard((("global", "app", "SCALE"),), Predicate.EQUALS, ("float", "0x1.8p+0")),
    Guard((("local", "self"), ("submodule", "linear")), Predicate.TYPE, "torch.nn.modules.linear:Linear"),
)
VERSIONS = Versions(lowering="1", torch="2.13", python="3.11", compiler="g++ 12.2.0")
FRAME = {"name": "forward", "code": b"\x00\x01", "inputs": [{"path": [["local", "x"]], "bound": False}]}


def make(number: int = 0, size: int = 64, **changes: Any) -> tuple[Manifest, BlobSet]:
    """An artifact; another `number` gives another id and other blobs. `changes` replace arguments of `Manifest.make`."""
    blobs = BlobSet()
    library = blobs.add(f"library {number} ".encode().ljust(size, b"."))
    graph = GraphRecord(
        {"library": library, "kernel_source": blobs.add("void kernel() {}"), "host_source": blobs.add("def run(x): ...")},
        {"inputs": ["x"], "outputs": ["y"], "workspace": 4096},
    )
    arguments: dict[str, Any] = {
        "program_key": "model-0123abcd",
        "program_name": "model",
        "target": "cpu:x86-64-v3",
        "versions": VERSIONS,
        "options": {"freeze": False, "number": number},
        "guards": GUARDS,
        "graphs": {"forward": graph},
        "blobs": blobs.sizes(),
        "frames": [FRAME],
        "waived": ["guard on self.counter"],
        "digests": {"app:helper": "ab" * 32},
        "evidence": {"choices": {"mm_0": "onednn"}},
        "provenance": {"source": "app.py:12"},
        "precast_version": "0.1.0",
    }
    return Manifest.make(**{**arguments, **changes}), blobs


def fill(root: Path, count: int = 1, **changes: Any) -> tuple[Store, list[str]]:
    """A store with `count` artifacts, and their ids."""
    store = Store.open(root)
    return store, [store.put(*make(number, **changes)) for number in range(count)]


def complete(store: Store, manifest: Manifest) -> bool:
    """Whether every blob of the artifact is there and right."""
    return all(store.blob(blob) is not None for blob in manifest.blobs)


def snapshot(root: Path) -> Mapping[str, bytes]:
    """All files of a store but those of the index, by name."""
    files = (path for path in root.rglob("*") if path.is_file() and "index" not in path.parts)
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


if __name__ == "__main__":
    fill(Path(sys.argv[1]), 2)
