"""Finds the C++ compiler and turns one translation unit into the bytes of a shared object, the same bytes for the same input."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

FLAGS = (
    "-std=c++17", "-O1", "-ftree-vectorize", "-fexpensive-optimizations", "-fopenmp", "-fPIC", "-shared", "-fvisibility=hidden",
    "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-fno-asynchronous-unwind-tables",
    "-fno-ident", "-frandom-seed=precast", "-s", "-Wl,--build-id=none", "-w",
)  # fmt: skip
"""No fast-math of any kind: beside changing results it would set flush-to-zero for the whole process on load."""

LIBRARIES = ("-lmvec", "-lm")
HOST_FLAGS = tuple(flag for flag in FLAGS if flag != "-fopenmp")
"""For the host program of a GPU graph: it computes nothing and runs on any CPU."""

TARGETS = {level: f"-march={level}" for level in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "native")}

LEVEL_FEATURES = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"},
    "x86-64-v2": {"cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"},
}


class CompilerMissing(RuntimeError):
    """No C++ compiler on this machine."""


class CompileFailed(RuntimeError):
    """The compiler refused generated code; the message holds its first errors."""


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str
    """First line of `--version`, which is part of an artifact's key."""


@functools.cache
def find_compiler() -> Compiler:
    """The environment's CXX, else g++, clang++ or c++. `CompilerMissing` says what to install."""
    asked = os.environ.get("CXX")
    for name in (asked,) if asked else ("g++", "clang++", "c++"):
        path = shutil.which(name)
        if path:
            text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            return Compiler(path, text.splitlines()[0].strip())
    raise CompilerMissing(
        f"precast needs a C++ compiler to compile: {f'CXX is {asked!r}, which is no program' if asked else 'no g++, clang++ or c++ is'} "
        "on the PATH. Install g++ (12 or newer), or serve from a store that was built elsewhere."
    )


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


def compile_shared(source: str, target: str) -> bytes:
    """Shared object of one translation unit for `target`.

    Raises `CompilerMissing` or `CompileFailed`.
    """
    compiler = find_compiler()
    with tempfile.TemporaryDirectory(prefix="precast-") as folder:
        (Path(folder) / "graph.cpp").write_text(source)
        flags = HOST_FLAGS if target.startswith("cuda:") else (*FLAGS, *march(target))
        libraries = () if target.startswith("cuda:") else LIBRARIES
        command = [compiler.path, *flags, "graph.cpp", "-o", "graph.so", *libraries]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line or "undefined" in line][:8]
            raise CompileFailed(
                f"{compiler.version} refused generated code for {target}:\n" + "\n".join(errors or done.stderr.splitlines()[:8])
            )
        return (Path(folder) / "graph.so").read_bytes()
