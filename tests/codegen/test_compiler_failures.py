"""A compiler that the machine ends: no room on a disk, no memory, a signal. Each is said as what it is, with what to do."""

from __future__ import annotations

import errno
import os
import re
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.codegen.common import toolchain
from precast.codegen.common.toolchain import CompileFailed, CompilerMissing, CompilerStopped, compile_shared
from precast.runtime.common.errors import CompileStopped
from tests.codegen.triton.test_parallel_compilers import use_compiler

Script = Callable[[str], None]
TARGET = "cpu:x86-64-v3"
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Script:
    """Puts a shell script in the compiler's place."""
    return lambda text: use_compiler(monkeypatch, tmp_path, text)


def free_space(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(toolchain.shutil, "disk_usage", lambda _: Usage(1 << 40, 0, count))


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "echo 'cc1plus: fatal error: error writing to x.s: No space left on device' >&2; exit 1",
            "no room left on the disk of .*tmp .*TMPDIR",
        ),
        ("echo 'ld: final link failed: Disk quota exceeded' >&2; exit 1", "no room left on the disk of .*tmp .*TMPDIR"),
        (
            "echo 'g++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1",
            "most likely because memory ran out.*\n.*cc1plus",
        ),
        ("echo 'collect2: fatal error: ld terminated with signal 9 [Killed]' >&2; exit 1", "most likely because memory ran out"),
        ("echo 'cc1plus: out of memory allocating 65536 bytes' >&2; exit 1", "most likely because memory ran out"),
        ("echo \"g++: fatal error: cannot execute 'as': execvp: No such file\" >&2; exit 1", "a part of it is missing .*\n.*'as'"),
        ("echo \"collect2: fatal error: cannot find 'ld'\" >&2; exit 1", "a part of it is missing .*Mend or replace"),
        ("echo '/usr/bin/ld: cannot find -lgomp' >&2; exit 1", "a part of it is missing .*\n.*-lgomp"),
        ("echo 'graph.cpp:1:10: fatal error: cmath: No such file or directory' >&2; exit 1", "a part of it is missing"),
        ("kill -9 $$", "most likely because memory ran out"),
        ("exit 137", "most likely because memory ran out"),
        ("kill -15 $$", "SIGTERM ended it"),
        ("exit 1", "status 1 and said nothing. Usually memory ran out, or the disk did: [0-9]+ MiB are free in .*tmp"),
    ],
)
def test_the_error_names_the_likely_cause(text: str, said: str, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    free_space(monkeypatch, 1 << 40)
    script(text)
    with pytest.raises(CompilerStopped, match=f"could not finish for {TARGET}: .*{said}"):
        compile_shared("int f();", TARGET)
    assert not list((tmp_path / "tmp").iterdir())


def test_a_silent_failure_on_a_full_disk_is_a_full_disk(script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The compiler's words had no room either, and some was given back when it removed what it had begun."""
    free_space(monkeypatch, 20 << 10)
    script("exit 1")
    with pytest.raises(CompilerStopped, match=rf"left on the disk of {tmp_path}/tmp \(20 KiB are free\). Free some space, or"):
        compile_shared("int f();", TARGET)


def test_a_compiler_that_wrote_nothing(script: Script) -> None:
    script("exit 0")
    with pytest.raises(CompilerStopped, match="said that all went well .* and wrote nothing. Mend or replace"):
        compile_shared("int f();", TARGET)


@pytest.mark.parametrize("text", ["echo garbage > graph.so", '$CXX "$@" && truncate -s 3000 graph.so'])
@torch.no_grad()
def test_half_a_shared_object_is_not_stored(text: str, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRECAST_STRICT", "1")
    script(text)
    store = Store(tmp_path / "store")
    with pytest.raises(CompileStopped, match="left no whole shared object. Mend or replace the compiler"):
        precast.compile(lambda x: x.exp() * 2, store=store)(torch.zeros(5))
    assert not list(store.root.glob("programs/*/*"))


def test_a_wrong_line_is_not_the_machines_fault(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    free_space(monkeypatch, 20 << 10)
    script("echo 'graph.cpp:3: error: a wrong line' >&2; exit 1")
    with pytest.raises(CompileFailed, match="a wrong line"):
        compile_shared("int f();", TARGET)


def test_its_words_are_understood_in_every_country(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    free_space(monkeypatch, 1 << 40)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    words = {"C": "No space left on device", "*": "Auf dem Gerät ist kein Speicherplatz mehr verfügbar"}
    script("case $LC_ALL in " + " ".join(f"{name}) echo 'cc1plus: {said}' >&2;;" for name, said in words.items()) + " esac; exit 1")
    with pytest.raises(CompilerStopped, match="no room left"):
        compile_shared("int f();", TARGET)


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EAGAIN, errno.EMFILE])
def test_a_compiler_that_cannot_be_started(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(toolchain.subprocess, "Popen", refuse)
    with pytest.raises(CompilerStopped, match=f"could not be started: {os.strerror(number)}. Allow for more memory"):
        compile_shared("int f();", TARGET)


def test_a_compiler_that_went_away_is_missing(script: Script) -> None:
    script("exit 0")
    path = Path(toolchain.find_compiler().path)
    path.unlink()
    with pytest.raises(CompilerMissing, match=f"{re.escape(str(path))}, which was there before, cannot be started: No such file"):
        compile_shared("int f();", TARGET)


def test_letters_of_a_source_do_not_depend_on_the_country(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("locale.getencoding", lambda: "ascii")
    monkeypatch.setattr("io.text_encoding", lambda encoding, level=2: encoding or "ascii")
    unit = 'extern "C" const char* f() { return "größer"; }'
    assert "größer".encode() in compile_shared(unit, TARGET)


def no_room(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Writing a source fails as on a full disk."""
    written = Path.write_text

    def write_text(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.suffix == ".cpp":
            raise OSError(number, os.strerror(number), str(path))
        return written(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", write_text)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_source_without_room(number: int, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script('exec $CXX "$@"')
    no_room(monkeypatch, number)
    with pytest.raises(CompilerStopped, match=rf"no room left on the disk of {tmp_path}/tmp \("):
        compile_shared("int f();", TARGET)


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(CompilerStopped, match="no folder for temporary files can be made: .*gone.*TMPDIR"):
        compile_shared("int f();", TARGET)


def product(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.sin(x) * 3 + 7, -1)


X = torch.linspace(-1, 1, 30).reshape(5, 6)


@pytest.mark.parametrize("door", ["precast.compile", "torch.compile"])
@pytest.mark.parametrize("how", ["source", "silent"])
def test_a_users_call_on_a_full_disk(door: str, how: str, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The answer is eager's, and the one warning names the disk and no bug."""
    monkeypatch.delenv("PRECAST_STRICT", raising=False)
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "store"))
    if how == "source":
        script('exec $CXX "$@"')
        no_room(monkeypatch, errno.ENOSPC)
    else:
        script("exit 1")
        free_space(monkeypatch, 20 << 10)
    torch._dynamo.reset()
    call = precast.compile(product) if door == "precast.compile" else torch.compile(product, backend="precast")
    with torch.no_grad(), pytest.warns(UserWarning) as caught:
        for _ in range(3):
            torch.testing.assert_close(call(X), product(X))
    (warning,) = [str(w.message) for w in caught]
    assert "compiling it failed (" in warning and f"no room left on the disk of {tmp_path}/tmp" in warning and "bug" not in warning


def test_fullgraph_raises_it(script: Script, tmp_path: Path) -> None:
    script("kill -9 $$")
    with torch.no_grad(), pytest.raises(CompileStopped, match="most likely because memory ran out"):
        precast.compile(product, fullgraph=True, store=tmp_path / "store")(X)


@pytest.mark.parametrize("door", ["precast.compile", "torch.compile"])
def test_what_the_warning_names_compiles_it_again(door: str, script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PRECAST_STRICT", raising=False)
    monkeypatch.setenv("PRECAST_STORE", str(tmp_path / "store"))
    script('test -e "$COMPILERS_MAY_RUN" || kill -9 $$; exec $CXX "$@"')
    may_run = tmp_path / "may_run"
    monkeypatch.setenv("COMPILERS_MAY_RUN", str(may_run))
    torch._dynamo.reset()
    mine = door == "precast.compile"
    call, name = (
        (precast.compile(product), "precast.reset()") if mine else (torch.compile(product, backend="precast"), "torch.compiler.reset()")
    )
    with torch.no_grad():
        with pytest.warns(
            UserWarning, match=re.escape(f"once that is mended, {name}") + ".*most likely because memory ran out. Free memory"
        ):
            call(X)
        may_run.touch()
        (precast.reset if mine else torch.compiler.reset)()
        torch.testing.assert_close(call(X), product(X))
    assert [*(tmp_path / "store" / "programs").rglob("*.msgpack")]
