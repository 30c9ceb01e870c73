"""Finds the C++ compiler and turns one translation unit into the bytes of a shared object, the same bytes for the same input."""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

FLAGS = (
    "-std=c++17", "-O1", "-ftree-vectorize", "-fexpensive-optimizations", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
    "-fno-ident", "-frandom-seed=precast", "-s", "-Wl,--build-id=none", "-w",
)  # fmt: skip
"""No fast-math of any kind: beside changing results it would set flush-to-zero for the whole process on load."""

LIBRARIES = ("-lmvec", "-lm")
_LOOPS = ("-fopenmp", "-ftree-vectorize", "-fexpensive-optimizations")
HOST_FLAGS = ("-O0", *(flag for flag in FLAGS if flag not in ("-O1", *_LOOPS)))
"""For the host program of a GPU graph, which computes nothing and runs on any CPU: a third of the time to compile, which a cold start waits
for, and calls as fast as optimized ones, for they are calls (`benchmarks/gpu_overhead.py`)."""

SANITIZERS = {
    "address": ("-fsanitize=address", "-fno-omit-frame-pointer"),
    "undefined": ("-fsanitize=undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"),
}
"""What `sanitize` adds; names of functions then stay in the library, for reports."""

TARGETS = {level: f"-march={level}" for level in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "native")}

LEVEL_FEATURES = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    "x86-64-v2": {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"},
}


class CompilerMissing(RuntimeError):
    """No compiler for the target on this machine; `hint` says what to do where the message does not."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CompileFailed(RuntimeError):
    """The compiler refused generated code; the message holds its first errors."""


class CompilerStopped(RuntimeError):
    """The machine, not the code, ended a compilation: no room on a disk, no memory, a signal. The message says what to do."""


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str
    """First line of `--version`, which is part of an artifact's key."""


@functools.cache
def find_compiler() -> Compiler:
    """The compiler of this process, found once: see `look_for_compiler`."""
    return look_for_compiler()


def look_for_compiler() -> Compiler:
    """The environment's CXX, else g++, clang++ or c++. `CompilerMissing` says what to install."""
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path and (version := _version(path)):
            return Compiler(path, version)
    found = "no compiler that says its version" if asked and shutil.which(asked) else "no program on the PATH"
    raise CompilerMissing(
        "precast needs a C++ compiler to compile: "
        f"{f'CXX is {asked!r}, which is {found}' if asked else 'no g++, clang++ or c++ is on the PATH'}. "
        "Install g++ (12 or newer), or serve from a store that was built elsewhere."
    )


def _version(path: str) -> str:
    """The first line of a compiler's `--version`; "" where it prints none."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.partition("\n")[0].strip()


@functools.cache
def native_features() -> tuple[str, ...]:
    """CPU feature flags of this machine, sorted (empty where the kernel does not tell)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    for line in text.splitlines():
        if line.startswith("flags"):
            return tuple(sorted(line.split(":", 1)[1].split()))
    return ()


def native_level() -> str:
    """The highest x86-64 level that this machine runs."""
    have = set(native_features())
    needed: set[str] = set()
    level = "x86-64"
    for name in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        needed |= LEVEL_FEATURES[name]
        if needed <= have:
            level = name
    return level


def march(target: str) -> list[str]:
    """Compiler flags for `cpu:<level>`; "native" takes this machine's features. 512-bit vectors are preferred where they exist."""
    kind, _, level = target.partition(":")
    if kind != "cpu" or level not in TARGETS:
        raise ValueError(f"unknown CPU target {target!r}: choose one of {', '.join('cpu:' + t for t in TARGETS)}")
    wide = level == "x86-64-v4" or (level == "native" and native_level() == "x86-64-v4")
    return [TARGETS[level], *(["-mprefer-vector-width=512"] if wide else [])]


def lanes_of(target: str) -> int:
    """f32 elements in the widest vector of `target`."""
    level = native_level() if target == "cpu:native" else target.removeprefix("cpu:")
    return {"x86-64-v4": 16, "x86-64-v3": 8}.get(level, 4)


def compile_shared(source: str, target: str, sanitize: str = "") -> bytes:
    """Shared object of one translation unit for `target`, instrumented by the sanitizers that are named.

    Raises `CompilerMissing`, `CompileFailed` or `CompilerStopped`.
    """
    flags: tuple[str, ...] = (*FLAGS, *march(target))
    if sanitize:
        flags = (*(f for f in flags if f != "-s"), *(f for name in sanitize.split(",") for f in SANITIZERS[name]))
    with _folder() as folder:
        (folder / "graph.cpp").write_text(source, encoding="utf-8")
        with _begun([*flags, "graph.cpp", "-o", "graph.so", *LIBRARIES], folder) as process:
            _finish(process, folder, target)
        return _made(folder, target)


@contextmanager
def compiling(source: str, target: str) -> Iterator[Callable[[str], bytes]]:
    """Compiles a host program, which computes nothing itself and so runs on any CPU, while the body does other things. The function it is
    given waits for that, compiles a second and small translation unit, of what was not known before, and returns the shared object of
    both. A body left without it ends the compiler. `target` is named in errors.

    Raises `CompilerMissing` at once; the function raises `CompileFailed` or `CompilerStopped`.
    """
    with _folder() as folder:
        (folder / "graph.cpp").write_text(source, encoding="utf-8")
        with _begun([*HOST_FLAGS, "-c", "graph.cpp", "-o", "graph.o"], folder) as process:

            def finish(rest: str) -> bytes:
                _finish(process, folder, target)
                (folder / "rest.cpp").write_text(rest, encoding="utf-8")
                with _begun([*HOST_FLAGS, "rest.cpp", "graph.o", "-o", "graph.so"], folder) as last:
                    _finish(last, folder, target)
                return _made(folder, target)

            yield finish


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder for one compilation; the compiler's own temporary files go there too. Raises `CompilerStopped` where it has no room."""
    try:
        temporary = tempfile.TemporaryDirectory(prefix="precast-", ignore_cleanup_errors=True)
    except OSError as error:
        raise CompilerStopped(f"no folder for temporary files can be made: {error}. {_ELSEWHERE}") from error
    with temporary as name:
        try:
            yield Path(name)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise CompilerStopped(_full(Path(error.filename or name))) from error


@contextmanager
def _begun(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The compiler at work in `folder`, speaking English. It and its children do not outlive the body, however that ends."""
    path = find_compiler().path
    with open(folder / "errors.txt", "w") as errors:
        try:
            process = subprocess.Popen(
                [path, *arguments],
                cwd=folder,
                env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                text=True,
                process_group=0,
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EACCES):
                gone = f"the C++ compiler {path}, which was there before, cannot be started: {error.strerror}"
                raise CompilerMissing(f"{gone}. Install it again, and start the program again") from error
            if error.errno not in _NO_PROCESS:
                raise
            raise CompilerStopped(
                f"{path} could not be started: {error.strerror}. Allow for more memory, processes and open files, or compile less at once"
            ) from error
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_NO_PROCESS = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE)
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ELSEWHERE = "Free some space, or start the program again with a TMPDIR that names a folder with room"
_MEND = "Mend or replace the compiler, and start the program again"
_LITTLE = 16 << 20
"""Bytes that are too few for a compilation. The compiler removes what it began, so that some are free again once it has failed."""
_KILLED = re.compile(
    r"Killed signal terminated|terminated with signal 9|command: Killed|virtual memory exhausted|out of memory|annot allocate memory"
)
_INCOMPLETE = re.compile(
    r"cannot execute|cannot find|error trying to exec|installation problem|unable to execute command"
    r"|fatal error: '?[\w./+-]+'?: No such file or directory|fatal error: '[\w./+-]+' file not found|libgomp\.spec"
)
"""How compilers say that a program of theirs, a library or a header is not there: generated code includes their own headers only."""


def _finish(process: subprocess.Popen[str], folder: Path, target: str) -> None:
    """Waits for the compiler. Raises `CompileFailed` with its first errors, `CompilerStopped` where the code is not to blame."""
    if process.wait() == 0:
        return
    said = (folder / "errors.txt").read_text(errors="replace")
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "undefined" in line][:8]
    name = find_compiler().version
    if stopped := _stopped(process.returncode, said, bool(errors), folder):
        quoted = "".join(f"\n{line}" for line in errors or lines[:8])
        raise CompilerStopped(f"{name} could not finish for {target}: {stopped}{quoted}")
    raise CompileFailed(f"{name} refused generated code for {target}:\n" + "\n".join(errors or lines[:8]))


def _made(folder: Path, target: str) -> bytes:
    try:
        return (folder / "graph.so").read_bytes()
    except FileNotFoundError:
        raise CompilerStopped(f"{find_compiler().path} said that all went well for {target}, and wrote nothing. {_MEND}") from None


def _stopped(status: int, said: str, errors: bool, folder: Path) -> str:
    """What the machine lacked, where the compiler failed for such a reason."""
    free = shutil.disk_usage(folder).free
    if any(os.strerror(number) in said for number in _NO_ROOM) or (not errors and free < _LITTLE):
        return _full(folder)
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL) or _KILLED.search(said):
        return "it was killed, most likely because memory ran out. Free memory, allow for more, or compile less at once"
    if _INCOMPLETE.search(said):
        return f"a part of it is missing on this machine, or not on the PATH. {_MEND}"
    if status < 0:
        return f"{signal.Signals(-status).name} ended it"
    if not said.strip():
        return (
            f"it ended with status {status} and said nothing. Usually memory ran out, or the disk did: "
            f"{free >> 20} MiB are free in {folder.parent}. {_ELSEWHERE}"
        )
    return ""


def _full(path: Path) -> str:
    """The sentence on a disk without room; `path` may be a file or a folder that is to go."""
    where = path if path.is_dir() and not path.name.startswith("precast-") else path.parent
    where = where.parent if where.name.startswith("precast-") else where
    return f"there is no room left on the disk of {where} ({shutil.disk_usage(where).free >> 10} KiB are free). {_ELSEWHERE}"
