"""Scheduled programs to machine code: C++ kernels, the host program, the toolchain and measured library choices."""

from precast.codegen.compiled import CompiledGraph
from precast.codegen.pipeline import compile_program

__all__ = ["CompiledGraph", "compile_program"]
