"""The backend of the CPU family: C++ kernels and the host program in one translation unit."""

from __future__ import annotations

from precast.codegen.common.backend import Backend
from precast.codegen.common.toolchain import find_compiler
from precast.codegen.cpu.compile import compilation
from precast.codegen.cpu.tuning import tuning_name


def _compiler_version(target: str) -> str:
    return find_compiler().version


BACKEND = Backend(compilation, _compiler_version, lambda target: tuning_name())
