"""A scheduled `Program` to a `CompiledGraph` with images of its kernels. No GPU is needed."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from precast.codegen.common.compiled_graph import CompiledGraph, Image, evidence, input_records, output_records, plain_size
from precast.codegen.common.library_steps import RunStep
from precast.codegen.common.options import CodegenOptions, CompileContext
from precast.codegen.common.predictions import dearest_first
from precast.codegen.common.selection import Selection, Stages, library_owned, run_stages
from precast.codegen.common.step_records import step_records
from precast.codegen.common.toolchain import compiling
from precast.codegen.cpp.index_printer import INDEX_HELPERS
from precast.codegen.cpp.types import PROLOGUE
from precast.codegen.cuda.benchmarking import lab_for
from precast.codegen.cuda.fusion_choice import measured_products
from precast.codegen.cuda.host.library_calls import writes_in_place
from precast.codegen.cuda.host.rows_launch import Rows
from precast.codegen.cuda.host.writer import CudaHostWriter, Launch, kernel_table
from precast.codegen.cuda.select_library import expand
from precast.codegen.cuda.split_choice import measured_splits
from precast.codegen.cuda.tuning import CudaChooser
from precast.codegen.host.templates import ERROR
from precast.codegen.triton.build.cubin import registers
from precast.codegen.triton.build.images import Cubin, compile_images, image_numbers
from precast.codegen.triton.render.render import TritonKernel, render
from precast.codegen.triton.render.rows import render_rows
from precast.lowering.analysis.buffer_bytes import DEVICE_ALIGNMENT
from precast.lowering.analysis.traits import traits_of
from precast.lowering.ir.nodes import Kernel, Program
from precast.lowering.passes.memory.memory_plan import plan_memory
from precast.lowering.passes.memory.workspace_segments import in_parts, most_held
from precast.lowering.targets.scheduling import Pass

log = logging.getLogger("precast.compile")


@dataclass(frozen=True)
class CudaCompilation:
    """One program on its way to `target` ("cuda:sm_90")."""

    target: str
    options: CodegenOptions
    context: CompileContext
    chooser: CudaChooser

    @property
    def passes(self) -> Mapping[str, Pass]:
        """The passes of lowering that measurements decide about: which products go into the kernels that read them."""
        return passes_by(self.chooser)

    def compile(self, scheduled: Program) -> CompiledGraph:
        """Raises `render.ops.Unsupported` for a kernel without a Triton form, `CompilerMissing` and `CompileFailed` from the C++
        toolchain, and Triton's own errors.
        """
        began = time.perf_counter()
        selection = run_stages(scheduled, stages(self.chooser, self.context.frees_inputs))
        program, steps, prepare = selection.program, selection.steps, selection.prepare
        buffers, every = program.buffers, (*steps, *prepare)
        if self.chooser.measure is not None:
            _ask_tilings(program, every, self.chooser, self.target)
        rendered = {
            s.name: render(s, buffers, self.chooser.tilings(s, buffers), self.chooser.traits) for s in every if isinstance(s, Kernel)
        }
        launches, kernels = _launches(every, rendered)
        rows = None if prepare else render_rows(program, self.chooser.traits)
        if rows is not None:
            kernels.append(rows.kernel)
        many = None if rows is None else Rows(rows, len(kernels) - 1)
        host = CudaHostWriter(program, steps, launches, len(kernels), self.context.inference, many)
        host.frees_inputs = self.context.frees_inputs
        unit = "\n".join([PROLOGUE, INDEX_HELPERS, ERROR, host.source((), prepare)])
        host.table.require(self.context.missing)
        with compiling(unit, self.target) as finish:  # beside the kernels: neither waits for the other
            functions = {name: ", ".join(dict.fromkeys(own.kernel.entry for own in some)) for name, some in launches.items()}
            records = step_records(program, steps, functions)
            cubins = compile_images(kernels, _architecture(self.target), max(1, (os.cpu_count() or 1) // self.context.shared_by))
            loaded = time.perf_counter()
            library = finish(kernel_table([c.metadata for c in cubins]) + _identity(self.target, cubins))
        done = time.perf_counter()
        return CompiledGraph(
            library=library,
            kernel_source="\n\n".join(map(_titled, kernels, cubins)),
            host_source="\n".join(host.python) + "\n",
            inputs=input_records(program),
            outputs=output_records(program),
            workspace_bytes=plain_size(most_held(program)),
            evidence=evidence(
                _architecture(self.target),
                self.chooser.used,
                triton=_triton_version(),
                kernels={c.entry: _kernel_evidence(c) for c in cubins},
            ),
            timings={"triton_s": loaded - began, "compiler_s": done - loaded},
            python_calls=tuple(str(record["op"]) for record in host.externs),
            steps=records,
            images=tuple(Image(c.entry, c.image, c.metadata) for c in cubins),
        )


def passes_by(chooser: CudaChooser) -> Mapping[str, Pass]:
    """What `CudaCompilation.passes` are with this chooser."""
    found = {"products in kernels": measured_products(chooser), "gpu reductions": measured_splits(chooser)}
    return {name: own for name, own in found.items() if own is not None}


def compilation(target: str, options: CodegenOptions, context: CompileContext) -> CudaCompilation:
    """With a chooser over the records of `context`, which measures under max-autotune where the device is at hand."""
    chooser = CudaChooser(context.tuning, traits=traits_of(target))
    if options.max_autotune:
        try:
            chooser.measure = lab_for(target, options.max_autotune_seconds).answer
        except RuntimeError as error:
            log.info("max-autotune: nothing is measured: %s", error)
    return CudaCompilation(target, options, context, chooser)


def stages(chooser: CudaChooser, frees_inputs: bool = False) -> Stages:
    """From a scheduled program to what the host program runs. `frees_inputs`: as in `CompileContext`."""
    return [
        ("select libraries", partial(_select, chooser)),
        ("plan memory", _plan_memory),
        ("divide the workspace", partial(_divide, frees_inputs)),
    ]


def _select(chooser: CudaChooser, selection: Selection) -> Selection:
    program = selection.program
    steps = expand(program, program.steps, chooser)
    return replace(selection, steps=tuple(steps), prepare=tuple(expand(program, program.prepare, chooser, "prepare")))


def _plan_memory(selection: Selection) -> Selection:
    owned = library_owned(selection.steps, writes_in_place)
    return replace(selection, program=plan_memory(selection.program, elsewhere=owned, alignment=DEVICE_ALIGNMENT))


def _divide(frees_inputs: bool, selection: Selection) -> Selection:
    owned = library_owned(selection.steps, writes_in_place)
    return replace(selection, program=in_parts(selection.program, owned, frees_inputs=frees_inputs))


def choose_all(program: Program, chooser: CudaChooser, target: str) -> None:
    """Asks the chooser everything that compiling the scheduled program would ask it, and compiles nothing."""
    selection = run_stages(program, stages(chooser)[:1])
    _ask_tilings(program, (*selection.steps, *selection.prepare), chooser, target)


def _ask_tilings(program: Program, steps: Sequence[RunStep], chooser: CudaChooser, target: str) -> None:
    """Asks for all kernels' tilings, first those whose kernels are expected to take longest together: time to measure may run out."""
    for kernel in dearest_first([s for s in steps if isinstance(s, Kernel)], program.buffers, target):
        chooser.tilings(kernel, program.buffers)


def _architecture(target: str) -> str:
    return target.removeprefix("cuda:")


def _identity(target: str, cubins: Sequence[Cubin]) -> str:
    """Makes the libraries of other images other libraries: a process opens each once, and it keeps the addresses of its images."""
    digest = hashlib.sha256(b"".join(hashlib.sha256(cubin.image).digest() for cubin in cubins)).hexdigest()
    return f'extern "C" __attribute__((visibility("default"))) const char precast_identity[] = "{target} {digest}";\n'


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


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def _kernel_evidence(cubin: Cubin) -> dict[str, int]:
    """What a kernel takes of the device: warps of a block, bytes of shared memory, registers of a thread where the image says."""
    count = registers(cubin.image)
    known = {} if count is None else {"registers": count}
    return {"warps": cubin.metadata["num_warps"], "shared": cubin.metadata["shared"], **known}
