"""`compile_program`: a scheduled `Program` in, a `CompiledGraph` out, by the backend of its target."""

from __future__ import annotations

from precast.codegen.common.backend import Backend
from precast.codegen.common.compiled_graph import CompiledGraph
from precast.codegen.common.options import CONTEXT, OPTIONS, CodegenOptions, CompileContext
from precast.lowering.ir.nodes import Program
from precast.target_registry import Family, family_of, load


def backend_of(target: str | Family) -> Backend:
    """The backend of a target or of a family; its module is imported on first use. Raises `target_registry.UnknownFamily`."""
    family = family_of(target) if isinstance(target, str) else target
    backend: Backend = load(family.codegen)
    return backend


def compile_program(program: Program, target: str, options: CodegenOptions = OPTIONS, context: CompileContext = CONTEXT) -> CompiledGraph:
    """Compiles a scheduled program for `target` ("cpu:x86-64-v3", "cpu:native", "cuda:sm_90", …).

    Raises one of the backend's `unsupported` for a program that has no form there, `CompilerMissing`, `CompilerStopped` and `CompileFailed`
    from the toolchain.
    """
    return backend_of(target).compilation(target, options, context).compile(program)


__all__ = ["backend_of", "compile_program"]
