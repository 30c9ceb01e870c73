"""The backend of the CUDA family: Triton kernels as images, and a C++ host program that launches them and calls the device's libraries."""

from __future__ import annotations

import importlib.metadata

from precast.codegen.backend import Backend
from precast.codegen.cuda_pipeline import compilation
from precast.codegen.cuda_start import start_libraries
from precast.codegen.cuda_tuner import CudaTuner
from precast.codegen.toolchain import CompilerMissing, find_compiler
from precast.codegen.triton_compile import warm_up
from precast.codegen.triton_ops import Unsupported
from precast.codegen.triton_pool import begin as begin_processes


def _compiler_version(target: str) -> str:
    try:
        return f"{find_compiler().version}, triton {importlib.metadata.version('triton')}"
    except importlib.metadata.PackageNotFoundError as error:
        raise CompilerMissing(f"Triton is not installed, which compiles for {target}", "pip install triton") from error


def _begin() -> None:
    warm_up()
    begin_processes()


BACKEND = Backend(
    compilation,
    _compiler_version,
    lambda target: target.replace(":", "-"),
    unsupported=(Unsupported,),
    begin=_begin,
    start_libraries=start_libraries,
    tuner=CudaTuner(),
)
