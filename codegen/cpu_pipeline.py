"""`compile_cpu`: a scheduled `Program` in, a `CompiledGraph` out whose kernels are C++."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from precast.codegen.choices import Chooser, takes_bfloat16
from precast.codegen.compiled import CompiledGraph, input_records, output_records, plain_size
from precast.codegen.cpp_attention import attention_source as attention_text
from precast.codegen.cpp_index import INDEX_HELPERS
from precast.codegen.cpp_kernel import RenderedKernel, render_kernel
from precast.codegen.cpp_math import MATH
from precast.codegen.cpp_ops import prototypes
from precast.codegen.cpp_types import PROLOGUE
from precast.codegen.cpu_host import CpuHostWriter
from precast.codegen.expand import expand, pack_weights
from precast.codegen.few_rows import few_rows_source
from precast.codegen.host_library import writes_in_place
from precast.codegen.host_templates import ERROR
from precast.codegen.library_steps import LibraryCall, Pack, RunStep
from precast.codegen.mkl_products import bare_mkl_products
from precast.codegen.over_residuals import write_over_residuals
from precast.codegen.toolchain import compile_shared, find_compiler, lanes_of, native_level
from precast.codegen.winograd import winograd_source
from precast.lowering.effects import lasting_inputs
from precast.lowering.ir import Attention, Buffer, Extern, Kernel, Program
from precast.lowering.memory import plan_memory

FAULT = r"""
static void __attribute__((noinline, cold)) bad_index(Error* e, int64_t index, int64_t size, int dimension) {
  if (!__atomic_exchange_n(&e->set, 1, __ATOMIC_RELAXED)) { e->index = index; e->size = size; e->dimension = dimension; }
}
INLINE float pick(bool c, float a, float b) {
  uint32_t x, y; __builtin_memcpy(&x, &a, 4); __builtin_memcpy(&y, &b, 4);
  const uint32_t m = c ? ~0u : 0u, bits = (x & m) | (y & ~m);
  float r; __builtin_memcpy(&r, &bits, 4); return r;
}
template <class T> INLINE T combine_min(T a, T b) { return a != a ? a : (b != b ? b : (a < b ? a : b)); }
template <class T> INLINE T combine_max(T a, T b) { return a != a ? a : (b != b ? b : (a > b ? a : b)); }
"""


def compile_cpu(program: Program, target: str, options: Mapping[str, Any]) -> CompiledGraph:
    """Compiles a scheduled program for `target` ("cpu:x86-64-v3", "cpu:native", …).

    `options["alone"]` makes the context in which library calls are timed.

    Raises `TypeError` for values that have no C++ form, `CompilerMissing` and `CompileFailed` from the toolchain.
    """
    began = time.perf_counter()
    measure = bool(options.get("measure", True)) and target == "cpu:native"
    chooser = Chooser(
        options.get("tuning", {}),
        measure,
        bool(options.get("max_autotune")),
        takes_bfloat16(target),
        alone=options.get("alone", nullcontext),
    )
    weights = _weights(program, options) if options.get("freeze") else frozenset()
    lanes = lanes_of(target)
    program, bare = bare_mkl_products(program, chooser, weights)
    buffers = {b.name: b for b in program.buffers}
    steps = expand(program, program.steps, chooser, weights=weights, lanes=lanes, bare=bare)
    packs: list[Pack] = []
    if weights:
        steps, packs = pack_weights(steps, weights, buffers, lanes)
    steps = write_over_residuals(steps, program)
    if program.workspace:
        program = plan_memory(program, elsewhere=_library_owned(steps))
    prepare = expand(program, program.prepare, chooser, "prepare")
    kernels = _render([*steps, *prepare], buffers)
    functions, attention_source = _attention_functions(steps, buffers, target)
    kernel_source = "".join({k.name: k.source for k in kernels.values()}.values()) + attention_source
    if any(isinstance(s, LibraryCall) and s.how == "winograd" for s in steps):
        kernel_source += winograd_source(lanes)
    if any(isinstance(s, LibraryCall) and s.how == "own" for s in [*steps, *prepare]):
        kernel_source += few_rows_source(lanes)
    host = CpuHostWriter(program, steps, kernels, functions, bool(options.get("inference")))
    host_source = host.source(packs, prepare)
    rendered = time.perf_counter()
    unit = "\n".join([PROLOGUE, prototypes(), MATH, INDEX_HELPERS, ERROR, FAULT, kernel_source, host_source])
    library = compile_shared(unit, target, str(options.get("sanitize") or ""))
    done = time.perf_counter()
    return CompiledGraph(
        library=library,
        kernel_source=kernel_source,
        host_source="\n".join(host.python) + "\n",
        inputs=input_records(program),
        outputs=output_records(program),
        workspace_bytes=plain_size(program.workspace_bytes),
        evidence=_evidence(target, kernels, chooser),
        timings={"render_s": rendered - began - chooser.spent_s, "measure_s": chooser.spent_s, "compiler_s": done - rendered},
        python_calls=tuple(str(record["op"]) for record in host.externs),
    )


def _weights(program: Program, options: Mapping[str, Any]) -> frozenset[str]:
    """Buffers whose contents last from call to call: `options["bound"]` names the inputs that are parameters (default: every input)."""
    return frozenset(lasting_inputs(program, options.get("bound")) | set(program.persistent))


def _library_owned(steps: Sequence[RunStep]) -> set[str]:
    """Buffers that lie in memory of a library's own: the workspace needs no room for them, now that the library is chosen."""
    return {
        name
        for step in steps
        if isinstance(step, Extern) or isinstance(step, LibraryCall) and not writes_in_place(step)
        for name in (step.outs if isinstance(step, Extern) else (step.out,))
    }


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


def _evidence(target: str, kernels: dict[str, RenderedKernel], chooser: Chooser) -> dict[str, Any]:
    level = native_level() if target == "cpu:native" else target.removeprefix("cpu:")
    return {
        "compiler": find_compiler().version,
        "target_level": level,
        "choices": dict(sorted(chooser.used.items())),
        "kernel_serial_ns": {k.name: round(k.serial_ns) for k in kernels.values() if not k.symbols},  # unknown sizes count as huge
    }
