"""`compile_cuda`: a scheduled `Program` in, a `CompiledGraph` with images of its kernels out. No GPU is needed."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from precast.codegen.compiled import CompiledGraph, Image, input_records, output_records, plain_size
from precast.codegen.cpp_index import INDEX_HELPERS
from precast.codegen.cpp_types import PROLOGUE
from precast.codegen.cubin import registers
from precast.codegen.cuda_choices import CudaChooser, chooser_of
from precast.codegen.cuda_expand import expand
from precast.codegen.cuda_fusion import products_by
from precast.codegen.cuda_host import CudaHostWriter, Launch, kernel_table
from precast.codegen.cuda_lab import lab_for
from precast.codegen.cuda_library import writes_in_place
from precast.codegen.host_templates import ERROR
from precast.codegen.library_steps import LibraryCall, RunStep
from precast.codegen.toolchain import compiling, find_compiler
from precast.codegen.triton_compile import Cubin, compile_images, image_numbers
from precast.codegen.triton_render import TritonKernel, render
from precast.lowering.buffer_bytes import DEVICE_ALIGNMENT
from precast.lowering.ir import Extern, Kernel, Program
from precast.lowering.memory import plan_memory
from precast.lowering.workspace_parts import in_parts, most_held

log = logging.getLogger("precast.compile")


def compile_cuda(program: Program, target: str, options: Mapping[str, Any]) -> CompiledGraph:
    """Compiles a scheduled program for `target` ("cuda:sm_90").

    Raises `triton_ops.Unsupported` for a kernel without a Triton form, `CompilerMissing` and `CompileFailed` from the C++ toolchain, and
    Triton's own errors.
    """
    began = time.perf_counter()
    arch = target.removeprefix("cuda:")
    chooser = _chooser(target, options)
    options = {**options, "chooser": chooser}
    steps = expand(program, program.steps, options)
    if program.workspace:
        owned = _library_owned(steps)
        program = in_parts(plan_memory(program, elsewhere=owned, alignment=DEVICE_ALIGNMENT), owned)
    prepare = expand(program, program.prepare, options, "prepare")
    buffers = program.buffers
    rendered = {s.name: render(s, buffers, chooser.tilings(s, buffers)) for s in (*steps, *prepare) if isinstance(s, Kernel)}
    launches, kernels = _launches([*steps, *prepare], rendered)
    host = CudaHostWriter(program, steps, launches, len(kernels), bool(options.get("inference")))
    unit = "\n".join([PROLOGUE, INDEX_HELPERS, ERROR, host.source((), prepare)])
    with compiling(unit, target) as finish:  # beside the kernels: neither waits for the other
        cubins = compile_images(kernels, arch, max(1, (os.cpu_count() or 1) // options.get("shared_by", 1)))
        loaded = time.perf_counter()
        library = finish(kernel_table([c.metadata for c in cubins]) + _identity(target, cubins))
    done = time.perf_counter()
    return CompiledGraph(
        library=library,
        kernel_source="\n\n".join(map(_titled, kernels, cubins)),
        host_source="\n".join(host.python) + "\n",
        inputs=input_records(program),
        outputs=output_records(program),
        workspace_bytes=plain_size(most_held(program)),
        evidence={**_evidence(target, cubins), "choices": chooser.used},
        timings={"triton_s": loaded - began, "compiler_s": done - loaded},
        python_calls=tuple(str(record["op"]) for record in host.externs),
        images=tuple(Image(c.entry, c.image, c.metadata) for c in cubins),
    )


def _identity(target: str, cubins: Sequence[Cubin]) -> str:
    """Makes the libraries of other images other libraries: a process opens each once, and it keeps the addresses of its images."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(cubin.image).digest() for cubin in cubins)).hexdigest()
    return f'extern "C" __attribute__((visibility("default"))) const char precast_identity[] = "{target} {digest}";\n'


def _library_owned(steps: Sequence[RunStep]) -> set[str]:
    """Buffers that lie in memory of a library's own: the workspace needs no room for them."""
    owned: set[str] = set()
    for step in steps:
        if isinstance(step, Extern):
            owned |= set(step.outs)
        elif isinstance(step, LibraryCall) and not writes_in_place(step):
            owned.add(step.out)
    return owned


def choosing(target: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what answers the questions of scheduling and compiling for `target`: `options["tuning"]`, and measurements."""
    chooser = _chooser(target, options)
    return {**options, "chooser": chooser, "products": products_by(chooser)}


def choose_all(program: Program, options: Mapping[str, Any]) -> None:
    """Asks the chooser of `options` everything that compiling the program would ask it, and compiles nothing."""
    chooser = chooser_of(options)
    for steps, prefix in ((program.steps, "library"), (program.prepare, "prepare")):
        for step in expand(program, steps, options, prefix):
            if isinstance(step, Kernel):
                chooser.tilings(step, program.buffers)


def _chooser(target: str, options: Mapping[str, Any]) -> CudaChooser:
    """The chooser of the options, which measures under max-autotune where the device is at hand."""
    chooser = chooser_of(options)
    if options.get("max_autotune") and chooser.measure is None:
        try:
            chooser.measure = lab_for(target).answer
        except RuntimeError as error:
            log.info("max-autotune: nothing is measured: %s", error)
    return chooser


def _launches(
    steps: Sequence[RunStep], rendered: Mapping[str, tuple[TritonKernel, ...]]
) -> tuple[dict[str, tuple[Launch, ...]], list[TritonKernel]]:
    """The launches of each kernel step, and the kernels that they run, each once: those of equal layers are one."""
    wanted = {s.name: rendered[s.name] for s in steps if isinstance(s, Kernel)}
    every = [k for group in wanted.values() for kernel in group for k in (kernel, kernel.wide) if k is not None]
    numbers = dict(zip(map(id, every), image_numbers(every), strict=True))
    distinct = {numbers[id(kernel)]: kernel for kernel in reversed(every)}  # the first of each

    def launch(kernel: TritonKernel) -> Launch:
        return Launch(kernel, numbers[id(kernel)], None if kernel.wide is None else launch(kernel.wide))

    return {name: tuple(launch(k) for k in group) for name, group in wanted.items()}, [distinct[n] for n in sorted(distinct)]


def _titled(kernel: TritonKernel, cubin: Cubin) -> str:
    arguments = ", ".join(f"{a.name} = {a.buffer or a.symbol}" for a in kernel.arguments)
    return f"# {kernel.name}: grid {kernel.grid}, {cubin.metadata['block']} threads; first with {arguments}\n{kernel.source}"


def _evidence(target: str, cubins: Sequence[Cubin]) -> dict[str, Any]:
    import triton

    return {
        "compiler": find_compiler().version,
        "triton": triton.__version__,
        "target_level": target.removeprefix("cuda:"),
        "kernels": {c.entry: _kernel_evidence(c) for c in cubins},
    }


def _kernel_evidence(cubin: Cubin) -> dict[str, int]:
    """What a kernel takes of the device: warps of a block, bytes of shared memory, registers of a thread where the image says."""
    count = registers(cubin.image)
    known = {} if count is None else {"registers": count}
    return {"warps": cubin.metadata["num_warps"], "shared": cubin.metadata["shared"], **known}
