"""The backend of the CPU family: C++ kernels and the host program in one translation unit."""

from __future__ import annotations

from precast.codegen.backend import Backend
from precast.codegen.choices import tuning_name
from precast.codegen.cpu_pipeline import compilation
from precast.codegen.toolchain import find_compiler


def _compiler_version(target: str) -> str:
    return find_compiler().version


BACKEND = Backend(compilation, _compiler_version, lambda target: tuning_name())
