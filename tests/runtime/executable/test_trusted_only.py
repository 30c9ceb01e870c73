"""The places that turn bytes into code take `Trusted` and nothing else, and what the store does not trust is never loaded."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Guard, Predicate, Store
from precast.artifact_store.format.msgpack import digest
from precast.artifact_store.format.origin import FOLDER, PROCESS
from precast.artifact_store.format.records import GraphInput
from precast.artifact_store.trust.trusted import Policy, made_here
from precast.runtime.executable import ptx
from precast.runtime.executable.blob_source import MemoryBlobs
from precast.runtime.executable.library import Library, graph_library
from precast.runtime.frames import rewritten_code
from precast.runtime.loading.stored_graph import open_graph
from precast.runtime.native import build, loader
from precast.runtime.programs.program import Program
from tests.artifact_store.memory_tier import KIND, Memory
from tests.runtime import hand_made_artifacts as standin

X = torch.arange(4.0)


def product(x: torch.Tensor) -> torch.Tensor:
    return x * x


DOORS: dict[str, Callable[[Path], object]] = {
    "bytecode": lambda path: rewritten_code.build(standin.frame_code(product, "graph(x)"), product, tuple),  # type: ignore[arg-type]
    "shared object": lambda path: Library(path),  # type: ignore[arg-type]
    "image": lambda path: Library(made_here(path), {}, [b"\x7fELF image"]),  # type: ignore[list-item]
    "graph's blobs": lambda path: graph_library({"library": "ab" * 32}, MemoryBlobs({}), "cpu:x86-64-v3"),  # type: ignore[arg-type]
    "native runtime": lambda path: loader._load(path),  # type: ignore[arg-type]
    "PTX": lambda path: ptx.link(b"//\n.version 8.0\0", ctypes.c_void_p()),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("door", DOORS)
def test_untrusted_bytes_are_refused_by_their_type(door: str, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(standin.library())
    with pytest.raises(TypeError, match="is not Trusted"):
        DOORS[door](path)


TOUCHING = Guard((("local", "x"), ("method", "touch")), Predicate.NOT_NONE)
"""A guard that calls a method of the call's own argument."""


def _compiling(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any], *guards: Guard) -> Any:
    inputs = [GraphInput((("local", "x"),), False, 0), GraphInput((("local", "x"),), False, 1)]
    return program.store.put(*standin.manifest_for(program, guards, inputs, "graph(x, x)[0]", standin.library()))


def _store(tmp_path: Path, tier: Memory, *kinds: str) -> Store:
    return Store(tmp_path, tier=tier, policy=Policy(frozenset({FOLDER, PROCESS, *kinds})))


def test_a_program_is_served_through_any_tier(tmp_path: Path, counter: standin.Counting) -> None:
    """Nothing of the runtime reads a folder: what is compiled over one store is found by another over the same tier."""
    counter.inner = _compiling
    tier = Memory(tmp_path)
    for _ in range(2):
        served = precast.compile(product, store=_store(tmp_path, tier, KIND))
        for _ in range(3):
            torch.testing.assert_close(served(X), X * X)
        assert counter.frame_count == 1
    assert any(name.startswith("programs/") for name in tier.files) and not (tmp_path / "programs").exists()


def test_an_artifact_that_is_not_trusted_is_a_miss(tmp_path: Path, counter: standin.Counting, caplog: pytest.LogCaptureFixture) -> None:
    counter.inner = _compiling
    tier = Memory(tmp_path)
    precast.compile(product, store=_store(tmp_path, tier, KIND))(X)
    before = set(tmp_path.iterdir())
    with caplog.at_level(logging.INFO, "precast"), pytest.warns(UserWarning, match="product runs eagerly: .* may not become code here"):
        torch.testing.assert_close(precast.compile(product, store=_store(tmp_path, tier))(X), X * X)
    assert f"may not become code here: its origin is of kind '{KIND}'" in caplog.text
    assert set(tmp_path.iterdir()) == before, "nothing was fetched to be loaded"


def test_not_even_the_guards_of_an_untrusted_artifact_are_evaluated(
    tmp_path: Path, counter: standin.Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They call methods of the call's objects, and become Python source."""
    counter.inner = lambda *call: _compiling(*call, TOUCHING)
    touched: list[int] = []
    monkeypatch.setattr(torch.Tensor, "touch", lambda x: touched.append(1) or 1, raising=False)
    tier = Memory(tmp_path)
    for kinds in ((KIND,), ()):
        touched.clear()
        store = _store(tmp_path, tier, *kinds)
        if kinds:
            precast.compile(product, store=store)(X)
        else:
            served = precast.load(product, store=store)
            with pytest.raises(precast.GuardMiss):
                served(X)
            assert "may not become code here" in str(precast.explain_miss(served, X))
        assert bool(touched) == bool(kinds)


def test_a_bare_graph_that_is_not_trusted_is_not_opened(tmp_path: Path, counter: standin.Counting) -> None:
    counter.inner = _compiling
    tier = Memory(tmp_path)
    precast.compile(product, store=_store(tmp_path, tier, KIND))(X)
    store = _store(tmp_path, tier)
    (manifest,) = store.manifests()
    manifest.frames[0]["constants"] = ()
    with pytest.raises(precast.runtime.common.errors.LoadError, match="may not become code here"):
        open_graph(manifest, store)


def test_the_native_runtime_of_an_untrusted_tier_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tier, library = Memory(tmp_path), b"\x7fELF"
    name = digest(library)
    _store(tmp_path, tier, KIND).put_record("native", build.record_name(), {"library": name, "blobs": [name]}, {name: library})
    monkeypatch.setattr(loader._state, "module", None)
    monkeypatch.setattr(loader, "_load", lambda file: loaded.append(file.digest))
    loaded: list[str] = []
    with caplog.at_level(logging.INFO, "precast"):
        assert loader.find(_store(tmp_path, tier)) is None and not loaded
    assert f"the native runtime is not loaded: {tier.place}/native/" in caplog.text
    loader.find(_store(tmp_path, tier, KIND))
    assert loaded == [name]


def test_an_image_of_an_untrusted_tier_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx.nvidia_devices, "capabilities", lambda: ((9, 0),))
    monkeypatch.setattr(ptx.nvidia_devices, "machine", lambda: ptx.nvidia_devices.Machine(ptx.nvidia_devices.Driver("580.1", (13, 0)), ()))
    asked: list[bytes] = []

    def compiled(texts: list[Any]) -> list[bytes]:
        asked.extend(text.content for text in texts)
        return [b"\x7fELF of " + text.content for text in texts]

    monkeypatch.setattr(ptx, "_compiled", compiled)
    tier, text = Memory(tmp_path), made_here(b"//\n.version 8.0\0")
    for kinds, times in (((KIND,), 1), ((KIND,), 1), ((), 2)):
        (image,) = ptx.loadable([text], _store(tmp_path, tier, *kinds))
        assert image.content == b"\x7fELF of " + text.content and len(asked) == times
