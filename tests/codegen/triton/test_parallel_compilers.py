"""The C++ compiler and Triton at work at the same time: what each one's failure says, that neither outlives the other, equal bytes."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.codegen import CompiledGraph, compile_program
from precast.codegen.common import toolchain
from precast.codegen.cuda import backend, pipeline
from precast.codegen.triton.build import images as triton_compile
from precast.compiling import driver
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from tests.ops.trace import trace

TARGET = "cuda:sm_90"
Images = Callable[..., Any]


def compiled() -> CompiledGraph:
    graph = trace(lambda x: (x.exp(), x.softmax(0)), (torch.randn(6, 4),))[0]
    return compile_program(schedule(lower(graph, "test"), TARGET), TARGET)


def use_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """`script` in place of the C++ compiler, which is `$CXX` in it. Temporary folders lie in `folder`."""
    real = toolchain.find_compiler()
    path = folder / "c++"
    path.write_text(f"#!/bin/sh\nCXX={real.path}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr(toolchain, "find_compiler", lambda: toolchain.Compiler(str(path), real.version))
    temporary = folder / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(toolchain.tempfile, "tempdir", str(temporary))


def use_images(monkeypatch: pytest.MonkeyPatch, change: Callable[[Images], Images]) -> None:
    monkeypatch.setattr(pipeline, "compile_images", change(pipeline.compile_images))


def gone(pid: int) -> bool:
    """Whether the process has ended, or does so within a second."""
    end = time.monotonic() + 1
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # nobody here waits for a compiler's own children
            return True
        time.sleep(0.01)
    return False


def test_both_work_at_once_and_the_bytes_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the C++ compiler cannot end before the kernels are compiled; without this file they are compiled in whatever order."""
    plain, done = compiled(), tmp_path / "done"
    wait = f'n=0; while [ ! -e {done} ]; do n=$((n+1)); [ $n = 3000 ] && exit 9; sleep 0.01; done; exec $CXX "$@"'
    use_compiler(monkeypatch, tmp_path, wait)

    def then_say_so(images: Images) -> Images:
        def run(*args: Any) -> Any:
            found = images(*args)
            done.touch()
            return found

        return run

    use_images(monkeypatch, then_say_so)
    again = compiled()
    assert again.library == plain.library and again.images == plain.images and again.kernel_source == plain.kernel_source
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("failure", [ValueError("a kernel's own error"), KeyboardInterrupt()])
def test_a_kernel_that_fails_ends_the_compiler(failure: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    use_compiler(monkeypatch, tmp_path, f"sleep 100 & echo $$ $! >{pids}.new; mv {pids}.new {pids}; wait")

    def fail(_: Images) -> Images:
        def run(*args: Any) -> Any:
            end = time.monotonic() + 30
            while not pids.exists() and time.monotonic() < end:
                time.sleep(0.01)
            raise failure

        return run

    use_images(monkeypatch, fail)
    with pytest.raises(type(failure)) as caught:
        compiled()
    assert caught.value is failure
    assert all(gone(int(pid)) for pid in pids.read_text().split())
    assert not list((tmp_path / "tmp").iterdir())


def test_the_kernel_is_told_where_both_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same error in every run, whichever side was faster; and it names the kernel."""
    use_compiler(monkeypatch, tmp_path, "echo 'graph.cpp: error: no' >&2; exit 1")

    def refuse(kernel: Any) -> Any:
        raise ValueError("refused")

    monkeypatch.setattr("precast.codegen.triton.build.images.load", refuse)
    with pytest.raises(ValueError, match="refused") as caught:
        compiled()
    assert any("while kernel " in note and note.endswith("was compiled for sm_90") for note in caught.value.__notes__)


@pytest.mark.parametrize("unit", ["graph.cpp", "rest.cpp"])
def test_a_refused_host_program_says_so(unit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = f'case "$*" in *{unit}*) echo "{unit}:3: error: a wrong line" >&2; exit 1;; esac; exec $CXX "$@"'
    use_compiler(monkeypatch, tmp_path, script)
    with pytest.raises(toolchain.CompileFailed, match=rf"refused generated code for {TARGET}:\n{unit}:3: error: a wrong line"):
        compiled()
    assert not list((tmp_path / "tmp").iterdir())


def test_a_second_unit_is_linked_to_the_first(tmp_path: Path) -> None:
    unit = 'extern "C" { extern const int n; __attribute__((visibility("default"))) int f() { return n; } }'
    with toolchain.compiling(unit, TARGET) as finish:
        library = finish('extern "C" { extern const int n = 7; }')
    path = tmp_path / "two.so"
    path.write_bytes(library)
    assert ctypes.CDLL(str(path)).f() == 7


def test_triton_reads_itself_once_in_a_thread_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton.runtime.cache

    threads: list[str] = []
    key = triton.runtime.cache.triton_key
    monkeypatch.setattr(triton.runtime.cache, "triton_key", lambda: threads.append(threading.current_thread().name) or key())
    triton_compile.warm_up.cache_clear()
    before = set(threading.enumerate())
    thread = triton_compile.warm_up()
    assert triton_compile.warm_up() is thread
    thread.join()
    assert threads == ["precast-triton-key"] and set(threading.enumerate()) <= before


def test_a_child_forked_while_kernels_are_compiled_compiles_its_own() -> None:
    held, done = threading.Event(), threading.Event()

    def compiles() -> None:
        with triton_compile._LOCK, triton_compile._PARSING:
            held.set()
            done.wait(20)

    thread = threading.Thread(target=compiles)
    thread.start()
    assert held.wait(20)
    child = os.fork()
    if child == 0:
        os._exit(0 if triton_compile._LOCK.acquire(timeout=0) and triton_compile._PARSING.acquire(timeout=0) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("target", "begins"), [(TARGET, ["triton", "capture"]), ("cpu:x86-64-v3", ["capture"])])
def test_triton_begins_before_the_tracer(target: str, begins: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[str] = []
    capture = driver.capture

    def traced(*args: Any, **kwargs: Any) -> Any:
        calls.append("capture")
        return capture(*args, **kwargs)

    def begin() -> None:
        calls.append("triton")
        raise RuntimeError("can't start new thread")  # which is no reason to stop here

    monkeypatch.setattr(backend, "warm_up", begin)
    monkeypatch.setattr(driver, "capture", traced)
    with torch.no_grad():
        precast.precompile(torch.sin, [((torch.randn(4),), {})], targets=[target], store=tmp_path / "store")
    assert calls == begins
