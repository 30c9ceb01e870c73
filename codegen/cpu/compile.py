"""A scheduled `Program` to a `CompiledGraph` whose kernels are C++."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from precast.codegen.common.compiled_graph import CompiledGraph, evidence, input_records, output_records, plain_size
from precast.codegen.common.library_steps import LibraryCall, RunStep
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.common.selection import Selection, Stages, library_owned, run_stages
from precast.codegen.common.step_records import step_records
from precast.codegen.common.toolchain import compile_shared, lanes_of, native_level
from precast.codegen.cpp import loops, row_blocks, sharing, transposes, types
from precast.codegen.cpp.index_printer import INDEX_HELPERS
from precast.codegen.cpp.kernel import RenderedKernel, render_kernel
from precast.codegen.cpp.math_prelude import MATH
from precast.codegen.cpp.ops import prototypes
from precast.codegen.cpp.types import PROLOGUE
from precast.codegen.cpu.attention import attention_source as attention_text
from precast.codegen.cpu.depthwise import depthwise_source, form_of, function_of
from precast.codegen.cpu.direct.few_channels import few_channels_source, tile_of
from precast.codegen.cpu.host import CpuHostWriter
from precast.codegen.cpu.library_calls import writes_in_place
from precast.codegen.cpu.panel_gemm import panel_source
from precast.codegen.cpu.reuse_residuals import write_over_residuals
from precast.codegen.cpu.select_library import expand, pack_weights, write_out_attention
from precast.codegen.cpu.small_m_gemm import few_rows_source
from precast.codegen.cpu.split_mkl_epilogues import split_epilogues
from precast.codegen.cpu.tuning import Chooser, takes_bfloat16
from precast.codegen.cpu.winograd import winograd_source
from precast.codegen.host.templates import ERROR
from precast.lowering.analysis.effects import lasting_inputs
from precast.lowering.ir.nodes import Attention, Buffer, Conv, Kernel, Program
from precast.lowering.passes.fusion.fusion import CPU_GATHER, fuse
from precast.lowering.passes.memory.memory_plan import plan_memory
from precast.lowering.passes.simplify.collapse_axes import collapse_axes
from precast.lowering.passes.simplify.name_kernels import name_kernels
from precast.lowering.targets.scheduling import Pass

NATIVE = "cpu:native"
"""This machine's own CPU, the one target on which library calls can be timed."""

FAULT = r"""
static void __attribute__((noinline, cold)) bad_index(Error* e, int64_t index, int64_t size, int dimension) {
  if (!__atomic_exchange_n(&e->set, 1, __ATOMIC_RELAXED)) { e->index = index; e->size = size; e->dimension = dimension; }
}
INLINE float pick(bool c, float a, float b) {
  uint32_t x, y; __builtin_memcpy(&x, &a, 4); __builtin_memcpy(&y, &b, 4);
  const uint32_t m = c ? ~0u : 0u, bits = (x & m) | (y & ~m);
  float r; __builtin_memcpy(&r, &bits, 4); return r;
}
INLINE uint8_t pick(bool c, uint8_t a, uint8_t b) { const uint8_t m = c ? 0xff : 0; return (uint8_t)((a & m) | (b & ~m)); }
template <class T> INLINE T combine_min(T a, T b) { return a != a ? a : (b != b ? b : (a < b ? a : b)); }
template <class T> INLINE T combine_max(T a, T b) { return a != a ? a : (b != b ? b : (a > b ? a : b)); }
"""


@dataclass(frozen=True)
class CpuCompilation:
    """One program on its way to `target` ("cpu:x86-64-v3", "cpu:native", …)."""

    target: str
    options: CodegenOptions
    context: CompileContext
    chooser: Chooser
    passes: Mapping[str, Pass] = field(default_factory=dict)
    """None of lowering's passes depends on what is measured for a CPU."""

    def compile(self, scheduled: Program) -> CompiledGraph:
        """Raises `TypeError` for values that have no C++ form, `Unsupported` where this torch lacks a function that the host program cannot
        do without, `CompilerMissing` and `CompileFailed` from the toolchain.
        """
        began = time.perf_counter()
        lanes = lanes_of(self.target)
        selection = run_stages(scheduled, stages(self.chooser, self._weights(scheduled), lanes))
        program, every = selection.program, (*selection.steps, *selection.prepare)
        buffers = {b.name: b for b in program.buffers}
        kernels = _render(every, buffers)
        functions, attention_source = _attention_functions(selection.steps, buffers, self.target)
        kernel_source = "".join({k.name: k.source for k in kernels.values()}.values()) + attention_source
        if any(isinstance(s, LibraryCall) and s.how == "winograd" for s in selection.steps):
            kernel_source += winograd_source(lanes)
        if any(isinstance(s, LibraryCall) and s.how == "own" for s in every):
            kernel_source += few_rows_source(lanes)
        if any(isinstance(s, LibraryCall) and s.how == "panel" for s in every):
            kernel_source += panel_source(lanes)
        deep = [s.step for s in every if isinstance(s, LibraryCall) and s.how == "depthwise" and isinstance(s.step, Conv)]
        if deep:
            kernel_source += depthwise_source(lanes, [form_of(s, buffers[s.out]) for s in deep])
        own = {s.out: function_of(form_of(s, buffers[s.out])) for s in deep}
        first = [s.step for s in every if isinstance(s, LibraryCall) and s.how == "few channels" and isinstance(s.step, Conv)]
        if first:
            tiles = {s.out: tile_of(s, buffers[s.out], lanes) for s in first}
            kernel_source += few_channels_source(lanes, tiles.values())
            own |= {out: tile.function for out, tile in tiles.items()}
        host = CpuHostWriter(program, selection.steps, kernels, functions, self.context.inference, lanes)
        host.missing, host.frees_inputs = self.context.missing, self.context.frees_inputs
        host_source = host.source(selection.packs, selection.prepare)
        host.table.require(self.context.missing)
        rendered = time.perf_counter()
        unit = "\n".join(
            [
                PROLOGUE,
                prototypes(),
                MATH,
                INDEX_HELPERS,
                ERROR,
                FAULT,
                types.helpers(kernel_source),
                sharing.helpers(kernel_source),
                loops.helpers(kernel_source),
                transposes.helpers(kernel_source),
                row_blocks.helpers(kernel_source),
                kernel_source,
                host_source,
            ]
        )
        library = compile_shared(unit, self.target, self.options.sanitize)
        done = time.perf_counter()
        measured = self.chooser.spent_s
        return CompiledGraph(
            library=library,
            kernel_source=kernel_source,
            host_source="\n".join(host.python) + "\n",
            inputs=input_records(program),
            outputs=output_records(program),
            workspace_bytes=plain_size(program.workspace_bytes),
            evidence=evidence(
                native_level() if self.target == NATIVE else self.target.removeprefix("cpu:"),
                self.chooser.used,
                kernel_serial_ns={k.name: round(k.serial_ns) for k in kernels.values() if not k.symbols},  # unknown sizes count as huge
            ),
            timings={"render_s": rendered - began - measured, "measure_s": measured, "compiler_s": done - rendered},
            python_calls=tuple(str(record["op"]) for record in host.externs),
            steps=step_records(program, selection.steps, {name: k.name for name, k in kernels.items()}, own),
        )

    def _weights(self, program: Program) -> frozenset[str]:
        """Buffers whose contents last from call to call, so that they may be packed once."""
        return frozenset(lasting_inputs(program, self.context.bound) | set(program.persistent)) if self.options.freeze else frozenset()


def compilation(target: str, options: CodegenOptions, context: CompileContext) -> CpuCompilation:
    """With a chooser that measures where code for this machine's own CPU is made."""
    measure = options.measure and target == NATIVE
    chooser = Chooser(
        context.tuning,
        measure,
        options.max_autotune,
        takes_bfloat16(target),
        alone=context.alone,
        missing=context.missing,
        seconds=options.max_autotune_seconds,
    )
    return CpuCompilation(target, options, context, chooser)


def stages(chooser: Chooser, weights: frozenset[str], lanes: int) -> Stages:
    """From a scheduled program to what the host program runs.

    `weights` are the buffers that may be packed once; `lanes` is the number of f32 in the target's vectors.
    """
    return [
        ("split epilogues", partial(_split, chooser, weights)),
        ("fuse again", partial(_again, partial(fuse, gather_cost=CPU_GATHER))),
        ("collapse axes again", partial(_again, collapse_axes)),
        ("name kernels again", partial(_again, name_kernels)),
        ("write out attention", partial(_write_out, chooser)),
        ("select libraries", partial(_select, chooser, weights, lanes)),
        ("pack weights", partial(_pack, weights, lanes)),
        ("write over residuals", _write_over),
        ("plan memory", _plan_memory),
        ("select libraries of what is prepared", partial(_select_prepare, chooser)),
    ]


def _write_out(chooser: Chooser, selection: Selection) -> Selection:
    return replace(selection, program=write_out_attention(selection.program, chooser))


def _split(chooser: Chooser, weights: frozenset[str], selection: Selection) -> Selection:
    program, decided = split_epilogues(selection.program, chooser, weights)
    return replace(selection, program=program, decided=decided)


def _again(run: Pass, selection: Selection) -> Selection:
    """A pass of the scheduler once more, where epilogues were split off."""
    return replace(selection, program=run(selection.program)) if selection.decided else selection


def _select(chooser: Chooser, weights: frozenset[str], lanes: int, selection: Selection) -> Selection:
    program = selection.program
    steps = expand(program, program.steps, chooser, weights=weights, lanes=lanes, decided=selection.decided)
    return replace(selection, steps=tuple(steps))


def _pack(weights: frozenset[str], lanes: int, selection: Selection) -> Selection:
    if not weights:
        return selection
    steps, packs = pack_weights(selection.steps, weights, {b.name: b for b in selection.program.buffers}, lanes)
    return replace(selection, steps=tuple(steps), packs=tuple(packs))


def _write_over(selection: Selection) -> Selection:
    return replace(selection, steps=tuple(write_over_residuals(selection.steps, selection.program)))


def _plan_memory(selection: Selection) -> Selection:
    owned = library_owned(selection.steps, writes_in_place)
    return replace(selection, program=plan_memory(selection.program, elsewhere=owned))


def _select_prepare(chooser: Chooser, selection: Selection) -> Selection:
    return replace(selection, prepare=tuple(expand(selection.program, selection.program.prepare, chooser, "prepare")))


def _render(steps: Sequence[RunStep], buffers: dict[str, Buffer]) -> dict[str, RenderedKernel]:
    """Kernels by step name; steps whose code is the same share the function of the first."""
    bodies: dict[str, str] = {}
    kernels: dict[str, RenderedKernel] = {}
    for step in steps:
        if isinstance(step, Kernel):
            kernel = render_kernel(step, buffers)
            name = bodies.setdefault(kernel.body, kernel.name)
            kernels[step.name] = replace(kernel, name=name, source=kernels[name].source) if name != kernel.name else kernel
    return kernels


def _attention_functions(steps: Sequence[RunStep], buffers: dict[str, Buffer], target: str) -> tuple[dict[int, str], str]:
    """Generated attention: function name by identity of the step, and the functions' source; equal ones are shared."""
    names: dict[int, str] = {}
    sources: dict[str, str] = {}
    for step in steps:
        if isinstance(step, LibraryCall) and isinstance(step.step, Attention) and step.how == "generated":
            text = attention_text("@", step.step, buffers, lanes_of(target))
            names[id(step.step)] = sources.setdefault(text, f"attention_{len(sources)}")
    return names, "".join(text.replace("void @(", f"void {name}(") for text, name in sources.items())
