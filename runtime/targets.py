"""Targets: names for what an artifact runs on, and which of them this machine can run (the compatibility ladder)."""

from __future__ import annotations

import functools
import hashlib
import platform

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The instruction-set flags of this machine as Linux names them; empty where they cannot be read."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return frozenset(line.partition(":")[2].split())
    except OSError:
        pass  # not Linux: only the baseline is assumed
    return frozenset()


@functools.cache
def native_target() -> str:
    """The exact name of `cpu:native` here: the level and a digest of all flags, so that two kinds of machine never share it."""
    digest = hashlib.sha256(" ".join(sorted(cpu_flags())).encode()).hexdigest()[:12]
    return f"cpu:native-{digest}"


@functools.cache
def ladder() -> tuple[str, ...]:
    """CPU targets that run here, best first."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return (native_target(), f"cpu:{platform.machine()}")
    levels = tuple(f"cpu:{name}" for name, needed in LEVELS if needed <= cpu_flags())
    return (native_target(), *levels, "cpu:x86-64")


def resolve(target: str) -> str:
    """The name that manifests hold: `cpu:native` becomes this machine's own; others stay."""
    return native_target() if target == "cpu:native" else target


def rank(target: str) -> int | None:
    """Position of `target` on this machine's ladder (0 is best), or None when it cannot run here."""
    return ladder().index(target) if target in ladder() else None
