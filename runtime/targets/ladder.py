"""Targets: names for what an artifact runs on, and which of them this machine can run (the compatibility ladder).

A machine has a ladder for its CPU and one for its GPUs. Which of the two an artifact stands on is decided when its graph is known: a graph
with a tensor on a GPU is for the GPU.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re

from precast.runtime.common.errors import OptionError
from precast.runtime.targets import nvidia_devices

_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
LEVELS = (("x86-64-v4", _V4), ("x86-64-v3", _V3), ("x86-64-v2", _V2))
NATIVE = ("native", "cpu:native")
"""Spellings of "this machine": its CPU, or the GPU that a graph's tensors are on."""
PORTABLE_CPU = "cpu:x86-64-v3"
"""What graphs without a GPU tensor are compiled for in a program that is built for another machine's GPU."""
PTX = "cuda:ptx_80"
"""The fall-back for GPUs that no image was made for: text that their driver compiles."""
PTX_CUDA = (12, 0)
"""The oldest CUDA whose drivers read it."""
ARCHITECTURES = (80, 86, 87, 89, 90, 100, 103, 110, 120, 121)
"""Compute capabilities (major and minor in one number) that images can be made for."""
_CUDA = re.compile(r"cuda:(sm|ptx)_(\d+)")
_CPUS = frozenset((*(f"cpu:{name}" for name, _ in LEVELS), "cpu:x86-64", "cpu:aarch64"))
_NATIVE_CPU = re.compile(r"cpu:native-[0-9a-f]+")
_EXACT_SINCE = 90
"""From here on images use what one architecture alone has (sm_90a, sm_100a), and run on no other."""


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


def cuda_ladder(capability: tuple[int, int]) -> tuple[str, ...]:
    """GPU targets that run on a device of this compute capability, best first."""
    exact = 10 * capability[0] + capability[1]
    family = [a for a in reversed(ARCHITECTURES) if a < exact and a // 10 == capability[0] and a < _EXACT_SINCE]
    images = [exact, *family] if exact >= ARCHITECTURES[0] else []
    return (*(f"cuda:sm_{number}" for number in images), *((PTX,) if exact >= 80 else ()))


def is_cuda(target: str) -> bool:
    """Whether artifacts for `target` run on a GPU."""
    return target.startswith("cuda:")


def resolve(target: str) -> str:
    """The name that manifests hold: `native` and `cpu:native` become this machine's own CPU; others stay. Raises OptionError."""
    if target in NATIVE:
        return native_target()
    cuda = _CUDA.fullmatch(target)
    if cuda is not None and (target == PTX or (cuda[1] == "sm" and int(cuda[2]) in ARCHITECTURES)):
        return target
    if target in _CPUS or target == f"cpu:{platform.machine()}" or _NATIVE_CPU.fullmatch(target):
        return target
    images = ", ".join(f"cuda:sm_{number}" for number in ARCHITECTURES)
    levels = [f"cpu:{name}" for name, _ in LEVELS]
    others = sorted({*_CPUS, f"cpu:{platform.machine()}"}.difference(levels))
    raise OptionError(f"unknown target {target!r}; known: cpu:native, {', '.join([*levels, *others])}, {images}, {PTX}")


def rank(target: str) -> int | None:
    """Position of `target` on this machine's ladder (0 is best), or None when it cannot run here. Of several GPUs the best counts."""
    if not is_cuda(target):
        return ladder().index(target) if target in ladder() else None
    ladders = map(cuda_ladder, nvidia_devices.capabilities())
    return min((steps.index(target) for steps in ladders if target in steps), default=None)


def why_unfit(target: str) -> str:
    """Why this machine cannot run `target`, as the end of a sentence; empty where it can."""
    if rank(target) is not None:
        return ""
    if not is_cuda(target):
        return f"this machine's CPU runs {', '.join(ladder())}"
    found = nvidia_devices.capabilities()
    if found:
        runs = dict.fromkeys(step for capability in found for step in cuda_ladder(capability))
        kinds = ", ".join(f"{major}.{minor}" for major, minor in found)
        return f"this machine's GPUs have compute capability {kinds}, which runs {', '.join(runs) or 'nothing that precast makes'}"
    if nvidia_devices.machine().devices:
        return "this torch is built without CUDA, or CUDA_VISIBLE_DEVICES hides every GPU"
    return "this machine has no GPU"


def fits(target: str, capability: tuple[int, int]) -> bool:
    """Whether a device of this compute capability runs `target`."""
    return target in cuda_ladder(capability)


def native_cuda(capability: tuple[int, int]) -> str:
    """What is compiled for a device of this compute capability that is at hand: its own images where they can be made."""
    best = cuda_ladder(capability)
    number = 10 * capability[0] + capability[1]
    return best[0] if best and number in ARCHITECTURES else best[-1] if best else ""


def serves(requested: str, found: str) -> bool:
    """Whether an artifact for `found` is what a build for `requested` (resolved) makes: a graph's tensors decide between GPU and CPU."""
    if requested == found:
        return True
    if is_cuda(requested):
        return found == PORTABLE_CPU
    return is_cuda(found) and found in map(native_cuda, nvidia_devices.capabilities())


def runs(machine: str, found: str) -> bool:
    """Whether a machine of exactly the target `machine` (resolved) runs artifacts for `found`: its own, or further down its ladder."""
    if serves(machine, found):
        return True
    return found in ladder_of(machine)


def ladder_of(machine: str) -> tuple[str, ...]:
    """What a machine of exactly the target `machine` (resolved) runs of its own kind, best first. Of a foreign `cpu:native` only that."""
    if is_cuda(machine):
        number = machine.removeprefix("cuda:sm_")
        return cuda_ladder(divmod(int(number), 10)) if number.isdecimal() else (machine,)
    levels = (*(f"cpu:{name}" for name, _ in LEVELS), "cpu:x86-64")
    if machine in levels:
        return levels[levels.index(machine) :]
    return ladder() if machine == native_target() else (machine,)


def concerns(requested: str, found: str) -> bool:
    """Whether what is known of an artifact for `found` matters to compiling for `requested`: both are for one machine."""
    return runs(requested, found) or (not is_cuda(requested) and rank(found) is not None)
