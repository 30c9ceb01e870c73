"""Code generation's part: the program becomes one call of the interpreter in a host program of the usual kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from precast.codegen.common.backend import Backend
from precast.codegen.common.compiled_graph import CompiledGraph, input_records, output_records
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.common.toolchain import compiling, find_compiler
from precast.codegen.cpp.index_printer import INDEX_HELPERS
from precast.codegen.cpp.types import PROLOGUE
from precast.codegen.cpu.host import CpuHostWriter
from precast.codegen.host.templates import ERROR
from precast.lowering.analysis.effects import writes
from precast.lowering.ir.nodes import LAUNCH, Extern, Index, Output, Program, View
from precast.lowering.ir.sizes import Unsupported
from precast.lowering.targets.scheduling import Pass
from tests.toy_target.interpret_operator import NAME
from tests.toy_target.program_text import write


def _view(program: Program, name: str) -> View:
    buffer = program.buffer(name)
    return View(name, buffer.size, buffer.stride)


def _call(program: Program) -> Program:
    """A program of one step, which calls the interpreter on the inputs and takes from it what is not an input's own memory."""
    for step in program.steps:
        if isinstance(step, Extern) and (step.binds or step.op.startswith((LAUNCH, "control::"))):
            raise Unsupported(f"the interpreter does not run {step.op}")
    given = [item for item in program.inputs if isinstance(item, str)]
    numbers = [Index(item) for item in program.inputs if not isinstance(item, str)]
    made = tuple(dict.fromkeys(o.view.buffer for o in program.outputs if o.view is not None and o.view.buffer not in given))
    inner = replace(program, outputs=tuple(Output(_view(program, name)) for name in made))
    written = tuple(name for name in given if any(name in writes(step) for step in program.steps))
    arguments = (write(inner), tuple(_view(program, name) for name in given), tuple(numbers))
    buffers = tuple(b for b in program.buffers if b.name in (*given, *made))
    return replace(program, buffers=buffers, steps=(Extern(NAME, arguments, (), made, written),), constants=())


@dataclass(frozen=True)
class ToyCompilation:
    """One program on its way to the interpreter."""

    target: str
    context: CompileContext
    passes: Mapping[str, Pass] = field(default_factory=dict)

    def compile(self, scheduled: Program) -> CompiledGraph:
        """A library that calls the interpreter; it runs on any CPU."""
        called = _call(scheduled)
        host = CpuHostWriter(called, called.steps, {}, {}, self.context.inference)
        source = host.source((), [])
        with compiling("\n".join([PROLOGUE, INDEX_HELPERS, ERROR, source]), self.target) as finish:
            library = finish("")
        return CompiledGraph(
            library=library,
            kernel_source="",
            host_source="\n".join(host.python) + "\n",
            inputs=input_records(scheduled),
            outputs=output_records(scheduled),
            workspace_bytes=0,
            evidence={"compiler": find_compiler().version, "target_level": "interpreter", "choices": {}},
            python_calls=(NAME,),
        )


def _compilation(target: str, options: CodegenOptions, context: CompileContext) -> ToyCompilation:
    return ToyCompilation(target, context)


BACKEND = Backend(_compilation, lambda target: f"{find_compiler().version}, the oracle", lambda target: "toy")
