"""Scheduled programs to machine code: C++ kernels, the host program, the toolchain and measured library choices."""

from precast.codegen.common.backend import Backend
from precast.codegen.common.compiled_graph import CompiledGraph
from precast.codegen.pipeline import backend_of, compile_program

__all__ = ["Backend", "CompiledGraph", "backend_of", "compile_program"]
