"""Threads that cannot be started, resets and imports at awkward moments: the user's call goes on."""

from __future__ import annotations

import sys
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Guard, Predicate, Store
from precast.artifact_store.format.records import GraphInput
from precast.runtime.api.compile import site_of
from precast.runtime.common import background
from precast.runtime.common.errors import Deferred
from precast.runtime.dispatch import dispatcher
from precast.runtime.fingerprint import module_scope, untraced_code
from precast.runtime.native import loader
from precast.runtime.programs.program import Program
from tests.runtime import hand_made_artifacts as standin

WAIT = 20.0
"""Seconds; only a test that fails waits for so long."""
X = torch.arange(4.0)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def compile_product(program: Program, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    inputs = [GraphInput((("local", name),), False, number) for number, name in enumerate(("x", "w"))]
    guards = [Guard((("local", "x"),), Predicate.TYPE, "torch:Tensor")]
    return program.store.put(*standin.manifest_for(program, guards, inputs, "graph(x, w)[0]", standin.library(1.0)))


@pytest.fixture(autouse=True)
def compiled_here(set_compiler: Callable[[Any], None]) -> None:
    """What is compiled adds one, so that it shows."""
    set_compiler(compile_product)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a container's limit of threads is reached."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


@pytest.fixture
def python_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native runtime is not there yet."""
    for name, value in (("module", None), ("tables", False), ("failed", "")):
        monkeypatch.setattr(loader._state, name, value)


def compiled(*args: Any) -> None:
    torch.testing.assert_close(args[0], X * X + 1)


def test_no_thread_to_build_the_native_runtime_in(
    python_only: None, no_threads: None, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    built: list[Store] = []
    monkeypatch.setattr(loader, "ensure", built.append)
    compiled(precast.compile(product, store=store)(X, X))
    assert built == [store] and "is built after the compile, not beside it: can't start new thread" in caplog.text


def test_building_the_native_runtime_raises(
    python_only: None, no_threads: None, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "ensure", lambda store: 1 // 0)
    compiled(precast.compile(product, store=store)(X, X))
    assert "building the native runtime failed" in caplog.text


def test_what_is_told_of_a_compile_raises(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PRECAST_STRICT", raising=False)
    f = precast.compile(product, store=store)
    (program,) = site_of(f).programs
    program.hooks = replace(program.hooks, on_compile=lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    with pytest.warns(UserWarning, match="a bug of precast .* ZeroDivisionError"):
        torch.testing.assert_close(f(X, X), X * X)


def test_no_thread_to_compile_in(no_threads: None, store: Store, native_store: Store, set_compiler: Callable[[Any], None]) -> None:
    guards = [Guard((("local", "x"),), Predicate.TYPE, "torch:Tensor")]
    set_compiler(lambda *call: Deferred(guards, lambda: compile_product(*call)))
    f = precast.compile(product, store=store, options={"background_compile": True})
    torch.testing.assert_close(f(X, X), X * X)
    compiled(f(X, X))
    assert background.wait(0)


@pytest.mark.parametrize("strict", [False, True])
def test_the_native_dispatcher_cannot_be_made(store: Store, native_store: Store, monkeypatch: pytest.MonkeyPatch, strict: bool) -> None:
    made: list[Any] = []

    def broken(*args: Any) -> Any:
        made.append(args)
        raise OSError("no more of something")

    monkeypatch.setattr(dispatcher, "Tables", broken)
    monkeypatch.setenv("PRECAST_STRICT", "1" if strict else "")
    with monkeypatch.context() as patch:
        patch.setattr(loader._state, "module", None)
        patch.setattr(loader._state, "tables", False)
        f = precast.compile(product, store=store)
    if strict:  # it is there now, so that the next call takes it
        with pytest.raises(OSError, match="no more of something"):
            f(X, X)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            compiled(f(X, X))
    assert len(made) == 1
    texts = [str(warning.message) for warning in seen]
    assert [("is dispatched by Python" in text and "OSError: no more of something" in text) for text in texts] == ([] if strict else [True])


def test_making_a_frame_waits_for_another_call_of_the_program(store: Store, native_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    precast.compile(product, store=store)(X, X)
    f = precast.load(product, store=store)
    (program,) = site_of(f).programs
    build, making, done = program.build_frame, threading.Event(), threading.Event()

    def slow(record: Any, graph: Any) -> Any:
        """Imports a module that is being imported by the thread which makes the other call."""
        if not making.is_set():
            making.set()
            assert done.wait(WAIT), "deadlock"
        return build(record, graph)

    monkeypatch.setattr(program, "build_frame", slow)
    results: list[Any] = []

    def call() -> None:
        with torch.no_grad():
            results.append(f(X, X))

    def call_meanwhile() -> None:
        call()
        done.set()

    threads = [threading.Thread(target=call, daemon=True), threading.Thread(target=call_meanwhile, daemon=True)]
    threads[0].start()
    assert making.wait(WAIT)
    threads[1].start()
    for thread in threads:
        thread.join(WAIT)
    assert len(results) == 2
    compiled(results[0])
    (variant,) = program.variants
    assert len(variant._bindings) == 1, "the one that was made first serves both"  # type: ignore[union-attr]


def test_a_module_that_another_thread_is_importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    gate: Any = types.ModuleType("gate_of_half_imported")
    gate.reached, gate.opened = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "gate_of_half_imported", gate)
    source = f"import gate_of_half_imported as gate\ngate.reached.set()\nassert gate.opened.wait({WAIT})\ndef helper(): ...\n"
    (tmp_path / "half_imported.py").write_text(source)
    importing = threading.Thread(target=module_scope.load, args=("half_imported",), daemon=True)
    importing.start()
    assert gate.reached.wait(WAIT)
    whole: list[bool] = []
    judging = threading.Thread(target=lambda: whole.append(hasattr(module_scope.load("half_imported"), "helper")), daemon=True)
    judging.start()
    judging.join(0.2)
    gate.opened.set()
    judging.join(WAIT)
    importing.join(WAIT)
    assert whole == [True]


def test_an_artifact_is_judged_while_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[Any, list[Any]] = {}

    class Key(tuple):  # type: ignore[type-arg]
        def __getitem__(self, at: Any) -> Any:
            known.pop(self, None)  # another thread compiles
            known["other", "function", (str(len(known)),)] = []  # and another looks at an artifact
            return super().__getitem__(at)

    known[Key(("module", "function", ()))] = []
    known[Key(("module", "function", ("loaded",)))] = []
    monkeypatch.setattr(untraced_code, "_known", known)
    assert untraced_code.untraced_accounts("module", "function", product.__code__) == {}
    assert {key[0] for key in known} == {"other"}


def test_a_reset_before_the_table_of_a_call_is_made(store: Store, native_store: Store) -> None:
    f = precast.compile(product, store=store)
    (program,) = site_of(f).programs
    f(X, X)
    hooks = program.hooks
    remember = hooks.on_binding
    assert remember is not None

    def reset_first(*call: Any) -> None:
        program.reset()  # as another thread may
        remember(*call)

    program.hooks = replace(hooks, on_binding=reset_first)
    compiled(f(X, X))
    program.hooks = hooks
    assert not program.variants
    compiled(f(X, X))
    assert program.variants, "what was forgotten does not go on serving"


def test_a_reset_while_a_limit_is_reported(store: Store) -> None:
    class Cleared(Counter[str]):
        """Is empty from the first look at it on, whatever that was."""

        looks = 0

        def _cleared(self) -> None:
            self.looks += 1
            super().clear()

        def __bool__(self) -> bool:
            held = len(self.keys()) > 0
            self._cleared()
            return held

        def __len__(self) -> int:
            held = len(self.keys())
            self._cleared()
            return held

        def most_common(self, n: int | None = None) -> list[tuple[str, int]]:
            self._cleared()
            return super().most_common(n)

    (program,) = site_of(precast.compile(product, store=store)).programs
    program._misses._failures = Counter("x")
    assert program._misses._worst_guard() == "x"
    program._misses._failures = failures = Cleared("x")
    assert program._misses._worst_guard().startswith("none") and failures.looks == 1


def test_a_reset_while_other_threads_compile_and_call(store: Store) -> None:
    """At each step of the reset there come another compiled callable, another entry of this one, another function that resumes."""
    f = precast.compile(product, store=store)
    site = site_of(f)
    (route,) = site._routes.values()
    made, kept = route[0].hooks.resume._made, [f]  # type: ignore[union-attr]
    made.update({("resumed", str(number)): (site_of(precast.compile(product, store=store)).programs[0], None) for number in range(3)})  # type: ignore[misc]

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if event == "line" and len(kept) < 60 and frame.f_code.co_filename.endswith(("site.py", "resume.py", "_weakrefset.py")):
            kept.append(precast.compile(product, store=store))
            site._routes[len(kept)] = route
            made["other", str(len(kept))] = made["resumed", "0"]
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        precast.reset()
    finally:
        sys.settrace(before)
    assert len(kept) > 5
