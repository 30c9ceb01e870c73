"""Scheduled programs to machine code: C++ kernels, the host program, the toolchain and measured library choices."""

from precast.codegen.backend import Backend
from precast.codegen.compiled import CompiledGraph
from precast.codegen.pipeline import backend_of, compile_program

__all__ = ["Backend", "CompiledGraph", "backend_of", "compile_program"]
