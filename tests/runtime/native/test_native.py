"""The native runtime apart from programs: its layout probes, its graph calls, what it says about this Python."""

from __future__ import annotations

import gc
import graphlib
import subprocess
import sys
import sysconfig
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from precast.artifact_store import Store
from precast.artifact_store.format.records import GraphInput
from precast.runtime.executable.calling_convention import GraphSpec
from precast.runtime.executable.graph_call import graph_call
from precast.runtime.executable.library import Library
from precast.runtime.native import build, loader, tensor_layout
from tests.runtime import hand_made_artifacts as standin
from tests.support.processes import child

SPEC = GraphSpec((GraphInput((("local", "x"),), False, 0), GraphInput((("local", "self"), ("param", "w")), True, None)), "t", None)


@pytest.fixture
def call(native_store: Store, tmp_path: Path) -> Any:
    library = standin.trusted_library(tmp_path / "library", standin.library())
    return graph_call(Library(library), SPEC, (torch.nn.Parameter(torch.tensor([2.0])),))


@pytest.fixture(params=["THPVariable_Wrap", "stealing"])
def wrapping(request: pytest.FixtureRequest, native_store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both ways of making Python tensors of outputs."""
    if request.param == "stealing":
        monkeypatch.setattr(tensor_layout, "_WRAP", "no_such_symbol")
        tensor_layout.configure(loader.loaded())
    yield request.param
    monkeypatch.undo()
    tensor_layout.configure(loader.loaded())


def test_outputs_are_right_and_are_freed(wrapping: str, call: Any) -> None:
    x = torch.arange(3.0)
    (result,) = call(x)
    assert type(call).__name__ == "GraphCall"
    torch.testing.assert_close(result, x * 2)
    ref = weakref.ref(result)
    del result
    gc.collect()
    assert ref() is None


def test_pythons_headers_assert_nothing() -> None:
    """Debug checks of a header's inline functions would be paid at each call."""
    assert b"__assert_fail" not in build.build()


def test_outputs_in_memory_of_the_callers(native_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("native", "python"):
        library = Library(standin.trusted_library(tmp_path / kind, standin.library(1.0, lent=True)))
        assert library.lent == (0,)
        with monkeypatch.context() as patch:
            if kind == "python":
                patch.setattr(loader, "loaded", lambda: None)
            call, wide = (graph_call(library, SPEC, (torch.nn.Parameter(torch.full((n,), 2.0)),)) for n in (1, 2))
        x, home = torch.arange(3.0), torch.zeros(3)
        (result,) = call.into((home,), x)
        assert result.data_ptr() == home.data_ptr() and torch.equal(home, x * 2 + 1)
        (other,) = call.into((None,), x)
        assert other.data_ptr() != home.data_ptr() and torch.equal(other, home)
        ref = weakref.ref(home)
        del result, home
        assert ref() is None, "no handle of it is left"
        home = torch.zeros(5)
        ref = weakref.ref(home)
        with pytest.raises(IndexError, match="index 7"):
            wide.into((home,), torch.zeros(5))
        del home
        assert ref() is None, "not after an error either"


def test_wrong_arguments_are_errors(call: Any) -> None:
    with pytest.raises(TypeError, match="expected a tensor, got list"):
        call([1.0])
    with pytest.raises(TypeError, match="wants 1 arguments, got 0"):
        call()
    with pytest.raises(TypeError, match="no keyword arguments"):
        call(x=torch.zeros(1))


def test_inference_tensors_pass_through(call: Any) -> None:
    with torch.inference_mode():
        x = torch.ones(3)
        torch.testing.assert_close(call(x)[0], x * 2)


def test_dict_versions_are_judged_by_behaviour(native_store: Store) -> None:
    class Blind:
        """A table that notices nothing."""

        @staticmethod
        def dict(namespace: dict[str, Any], keys: tuple[str, ...], whole: bool) -> None:
            assert whole

        @staticmethod
        def watch() -> bool:
            return True

        @staticmethod
        def check(values: tuple[()]) -> bool:
            return True

    assert not loader.versions_are_sound(types.SimpleNamespace(Table=Blind))
    assert loader.tables_work() == (sys.version_info[:3] != (3, 13, 0))


def test_a_layout_that_is_not_understood_is_refused(native_store: Store) -> None:
    class Odd:
        """Reads that make no sense."""

        @staticmethod
        def read_bytes(address: int, count: int) -> bytes:
            return bytes(count)

        @staticmethod
        def allocation_size(address: int) -> int:
            return 64

    with pytest.raises(tensor_layout.LayoutUnknown):
        tensor_layout.configure(Odd())


def test_without_a_compiler_building_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.NativeBuildError, match="no C compiler was found"):
        build.build()


def test_the_build_is_deterministic() -> None:
    assert build.build() == build.build()


def test_the_c_files_form_no_circle(tmp_path: Path) -> None:
    """By the symbols that each file's object defines and needs: a file is compiled against those below it only."""
    sources = sorted(build.SOURCES.glob("*.c"))
    compiler = build.find_compiler()
    assert compiler is not None
    subprocess.run([compiler, "-c", "-O0", f"-I{sysconfig.get_path('include')}", *map(str, sources)], cwd=tmp_path, check=True)
    defined: dict[str, str] = {}
    needed: dict[str, set[str]] = {}
    for source in sources:
        listed = subprocess.run(["nm", f"{source.stem}.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for line in listed.splitlines():
            kind, name = line.split()[-2:]
            if kind == "U":
                needed.setdefault(name, set()).add(source.name)
            elif kind.isupper():
                defined[name] = source.name
    below: dict[str, set[str]] = {source.name: set() for source in sources}
    for name, files in needed.items():
        for file in files:
            if name in defined:
                below[file].add(defined[name])
    order = tuple(graphlib.TopologicalSorter(below).static_order())  # raises CycleError
    assert order[-1] == "module.c" and below["module.c"]


def test_a_compiler_that_leaves_no_library_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for does in ("exit 0", 'while [ "$1" != -o ]; do shift; done; echo half > "$2"'):
        (tmp_path / "cc").write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "cc").chmod(0o755)
        monkeypatch.setenv("CC", str(tmp_path / "cc"))
        with pytest.raises(build.NativeBuildError, match="left no whole shared object"):
            build.build()


def test_a_dispatcher_made_before_the_native_runtime_takes_it_up(tmp_path: Path) -> None:
    """The second of two callables finds what the first compiled, and so never compiles (and builds) itself."""
    (tmp_path / "two.py").write_text("def double(x):\n    return x * 2\n")
    said = child(
        tmp_path,
        """
        import threading, torch, precast, two
        from precast.runtime.native import loader as native
        from precast.runtime.api.compile import site_of
        with torch.no_grad():
            x = torch.ones(3)
            first, second = (precast.compile(two.double, store="store") for _ in range(2))
            parts = [site_of(call).program_for_call()[0] for call in (first, second)]  # both have their dispatchers now
            dispatchers = [part.hooks.on_binding.__self__ for part in parts]
            assert native.loaded() is None and all(dispatcher.tables is None for dispatcher in dispatchers)
            first(x)
            assert native.loaded() is not None and dispatchers[0].tables is not None
            threads = [threading.Thread(target=torch.no_grad()(lambda: second(x))) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for _ in range(4):
                assert torch.equal(second(x), x * 2)
            tables = dispatchers[1].tables
            before = tables.dispatcher.hits
            second(x)
            print(tables.dispatcher.hits - before)
        """,
    )
    assert said.strip() == "1"
