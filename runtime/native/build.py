"""Building the native runtime: C sources of this package -> one shared object per Python minor version and ABI, carried in the store."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from precast.runtime.targets.shared_object import is_whole

SOURCES = Path(__file__).parent / "src"
FLAGS = ("-O2", "-DNDEBUG", "-shared", "-fPIC", "-fvisibility=hidden", "-s", "-Wl,--build-id=none")
"""Without NDEBUG the inline functions of Python's headers assert the types of what they are given, in the checks of each call."""
SANITIZE = "PRECAST_NATIVE_SANITIZE"
"""Set to names of gcc's -fsanitize (`address,undefined`), the native runtime is built with these; `make asan` does."""
TIMEOUT_SECONDS = 300


class NativeBuildError(RuntimeError):
    """The native runtime cannot be built here; Python does its work, slower. The message says why."""


def _flags() -> tuple[str, ...]:
    """What the compiler is given. An instrumented build keeps its symbols, for reports, and ends the process at the first one."""
    sanitizers = os.environ.get(SANITIZE)
    if not sanitizers:
        return FLAGS
    kept = (flag for flag in FLAGS if flag not in ("-O2", "-s"))
    return (*kept, "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all")


def record_name() -> str:
    """The name of the store record for this Python, these sources and these flags."""
    return _record_name(_flags())


@functools.cache
def _record_name(flags: tuple[str, ...]) -> str:
    state = hashlib.sha256("\0".join(flags).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h"):
            state.update(path.name.encode() + b"\0" + path.read_bytes())
    abi = sysconfig.get_config_var("SOABI") or "unknown-abi"
    return f"{abi}-{state.hexdigest()[:16]}"


def find_compiler() -> str | None:
    """A C compiler: $CC, else gcc, cc, clang; None where there is none."""
    for name in (os.environ.get("CC", ""), "gcc", "cc", "clang"):
        found = shutil.which(name.split()[0]) if name else None
        if found is not None:
            return found
    return None


def build() -> bytes:
    """The shared object for this Python. Raises NativeBuildError."""
    compiler = find_compiler()
    include = sysconfig.get_path("include")
    if compiler is None:
        raise NativeBuildError("no C compiler was found (tried $CC, gcc, cc, clang)")
    if not Path(include, "Python.h").exists():
        raise NativeBuildError(f"Python.h is not in {include}; install the development files of this Python")
    names = sorted(path.name for path in SOURCES.glob("*.c"))
    with tempfile.TemporaryDirectory(prefix="precast-native-") as folder:
        out = Path(folder, "native.so")
        command = [compiler, *_flags(), f"-I{include}", "-o", str(out), *names]
        try:
            done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NativeBuildError(f"{compiler} could not be run: {error}") from error
        if done.returncode != 0:
            said = done.stderr.strip()[:2000] or f"exit code {done.returncode}, without a word (interrupted or killed?)"
            raise NativeBuildError(f"{compiler} failed: {said}")
        library = out.read_bytes() if out.exists() else b""
    if not is_whole(library):
        raise NativeBuildError(f"{compiler} said that all went well, and left no whole shared object")
    return library
