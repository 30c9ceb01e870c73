"""CPU targets: levels of instruction sets, this machine's exact features, and what runs where."""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Iterable

from precast.runtime.targets.rules import TargetRules

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))
NATIVE = "cpu:native"
"""This machine's own CPU, as users and code generation name it."""
PORTABLE = "cpu:x86-64-v3"
"""What most machines with GPUs run."""
_NAMED = frozenset((*(f"cpu:{name}" for name, _ in LEVELS), "cpu:x86-64", "cpu:aarch64"))
_EXACT = re.compile(r"cpu:native-[0-9a-f]+")


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


class CpuRules(TargetRules):
    def names(self) -> Iterable[str]:
        levels = [f"cpu:{name}" for name, _ in LEVELS]
        return (NATIVE, *levels, *sorted({*_NAMED, f"cpu:{platform.machine()}"}.difference(levels)))

    def resolve(self, target: str) -> str | None:
        if target == NATIVE:
            return native_target()
        return target if target in _NAMED or target == f"cpu:{platform.machine()}" or _EXACT.fullmatch(target) else None

    def ladder_of(self, machine: str) -> tuple[str, ...]:
        """Of another machine's `cpu:native` only that."""
        levels = (*(f"cpu:{name}" for name, _ in LEVELS), "cpu:x86-64")
        if machine in levels:
            return levels[levels.index(machine) :]
        return ladder() if machine == native_target() else (machine,)

    def rank(self, target: str) -> int | None:
        return ladder().index(target) if target in ladder() else None

    def why_unfit(self, target: str) -> str:
        return f"this machine's CPU runs {', '.join(ladder())}"

    def codegen_name(self, target: str) -> str:
        return NATIVE if target == native_target() else target

    def serves_only(self, target: str) -> str:
        return "CPUs with exactly its flags" if target.startswith("cpu:native-") else ""


RULES = CpuRules()

__all__ = ["LEVELS", "NATIVE", "PORTABLE", "RULES", "CpuRules", "cpu_flags", "ladder", "native_target"]
