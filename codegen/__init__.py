"""Scheduled programs to machine code: C++ kernels, the host program, the toolchain and measured library choices."""

from precast.codegen.common.compiled_graph import CompiledGraph
from precast.codegen.pipeline import compile_program, with_choices

__all__ = ["CompiledGraph", "compile_program", "with_choices"]
