"""The backend of the CUDA family: Triton kernels as images, and a C++ host program that launches them and calls the device's libraries."""

from __future__ import annotations

import importlib.metadata

from precast.codegen.common.backend import Backend
from precast.codegen.common.toolchain import CompilerMissing, find_compiler
from precast.codegen.cuda.pipeline import compilation
from precast.codegen.cuda.tune_command import CudaTuner
from precast.codegen.cuda.warm_up import start_libraries
from precast.codegen.triton.build.images import warm_up
from precast.codegen.triton.build.worker_pool import begin as begin_processes
from precast.codegen.triton.render.ops import Unsupported


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
