"""The host program for CUDA: kernels are loaded from images and launched through the driver, memory comes from torch's allocator."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from precast.codegen.common.library_steps import LibraryCall, Pack, RunStep
from precast.codegen.common.torch_names import dtype_code
from precast.codegen.cpp.types import storage
from precast.codegen.cuda.host.library_calls import emit_library, writes_in_place
from precast.codegen.cuda.host.rows_launch import Rows, rows_function
from precast.codegen.cuda.host.shims import CUDA_SHIMS, ROWS_SHIMS
from precast.codegen.cuda.host.templates import CUDA_PREPARE, CUDA_RUN, KERNEL_INFO, KERNELS, LITERALS, RUNTIME
from precast.codegen.host.shims import SymbolTable
from precast.codegen.host.step_effects import may_draw, step_reads, step_writes
from precast.codegen.host.writer import HostWriter, literal_words
from precast.codegen.triton.render.render import Argument, TritonKernel
from precast.lowering.analysis.buffer_bytes import nbytes_of
from precast.lowering.ir.nodes import Buffer, Kernel, Program, View
from precast.lowering.ir.sizes import Unsupported
from precast.lowering.passes.memory.workspace_segments import part_uses, slots_in

NUMBER = 16
"""Bytes kept for a number that kernels read and that lies in the host's memory."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel step: what to run, and the number of its image; `wide` where sizes may call for 64-bit indices."""

    kernel: TritonKernel
    image: int
    wide: Launch | None = None


class CudaHostWriter(HostWriter):
    """`launches` by step name, `images` the number of all images; `rows`: the launch of many rows, of an update. What is known of the
    images only once they are compiled is `kernel_table`'s, so that this program is compiled beside them.
    """

    def __init__(
        self,
        program: Program,
        steps: Sequence[RunStep],
        launches: Mapping[str, Sequence[Launch]],
        images: int,
        inference: bool = False,
        rows: Rows | None = None,
    ) -> None:
        super().__init__(program, steps, inference)
        self.rows = rows
        self.table = SymbolTable(CUDA_SHIMS)
        self.launches = launches
        self.images = images
        self.offsets = _literal_offsets(program)
        self.staged: dict[str, str] = {}
        self.numbers = 0
        self.held = 0
        self.kept = 0
        self.keeps, self.keeping = True, False
        self.second: CudaHostWriter | None = None
        self.parts = part_uses(program, [(*step_reads(s), *step_writes(s)) for s in steps])
        self.lent = self.lendable()
        taken = {b for s in steps if isinstance(s, Kernel) for launch in launches[s.name] for b in _buffers(launch.kernel)}
        self.kernel_inputs = [i for i in program.inputs if isinstance(i, str) and i in taken and not self.buffers[i].on_cpu]
        written = {n for s in steps for n in step_writes(s)}
        self.moved = [i for i in self.kernel_inputs if i in written]

    def lies_on(self, buffer: str) -> str:
        return "0, 0" if self.buffers[buffer].on_cpu else "1, run.device"

    # the call's data

    def bound(self, name: str) -> None:
        if name in self.kernel_inputs:
            self._align(name)

    def _on_device(self) -> list[int]:
        """Positions of the inputs that are tensors of the device."""
        return [p for p, i in enumerate(self.program.inputs) if isinstance(i, str) and not self.buffers[i].on_cpu]

    def _align(self, name: str) -> None:
        """Lets kernels see a copy of an input that begins where they cannot read; steps that share a written one then all use the copy."""
        pointer, original = self.pointer(name), self.handle[name]
        self.held += 1
        self.add(f"if (__builtin_expect(misaligned({pointer}), 0)) {{")
        self.add(f"if (align(run, &{pointer}, {self.size(_span(self.buffers[name]))})) return 1;")
        if name in self.moved:
            handle = f"h{self.number[name]}"
            self.lines.insert(0, f"  void* {handle} = {original};")
            del self.handle[name]
            whole = self.buffers[name]
            self.add(f"{handle} = {self.view_handle(View(name, whole.size, whole.stride), 'copy of a misaligned input')};")
            self.handle[name] = handle
        self.add("}")

    def outputs(self) -> None:
        for position, name in enumerate(self.program.inputs):
            if isinstance(name, str) and name in self.moved:
                self.add(f"if (__builtin_expect({self.handle[name]} != inputs[{position}], 0)) {{")
                self.call("aoti_torch_copy_", f"inputs[{position}], {self.handle[name]}, 0", f"input {name}")
                self.add("}")
                self.handle[name] = f"inputs[{position}]"
        super().outputs()

    def literals(self) -> None:
        self.point_at_literals()
        for constant in self.program.constants:
            if constant.buffer in self.output_buffers:
                source = self.pointer(constant.buffer)
                self.add(f"{{ void* const literal = {source};")
                self.allocate(constant.buffer, f"literal {constant.buffer}")
                to, shim = self.pointer(constant.buffer), self.table.use("cuMemcpyDtoDAsync_v2")
                self.add(f"const int code = {shim}((uint64_t){to}, (uint64_t)literal, {len(constant.data)}, run.stream);")
                self.add('if (code) return driver_error(run, code, "copying", "a literal"); }')

    def point_at_literals(self) -> None:
        if not self.program.constants:
            return
        self.add("char* const literal_base = literals_on_device(run);")
        self.add("if (!literal_base) return 1;")
        for constant in self.program.constants:
            self.add(f"{self.pointer(constant.buffer)} = literal_base + {self.offsets[constant.buffer]};")

    def workspace(self) -> None:
        if self.program.parts:
            self._numbers_alone()
            return
        numbers = sum(1 for b in self.program.buffers if b.on_cpu) * NUMBER
        if self.slots or numbers:
            self.held += 1
            total = self.size(self.program.workspace_bytes)
            self.add(f'char* const base = hold(run, {total} + {numbers}, "workspace");')
            self.add("if (!base) return 1;")
            self.add(f"char* const host_numbers = base + {total}; (void)host_numbers;")
            self.point_at_slots()

    def _numbers_alone(self) -> None:
        """Room for numbers of the host's, where the workspace is allocated part by part, each before the first step that uses it."""
        numbers = sum(1 for b in self.program.buffers if b.on_cpu) * NUMBER
        if numbers:
            self.held += 1
            self.add(f'char* const host_numbers = hold(run, {numbers}, "numbers of the host"); if (!host_numbers) return 1;')
        for number in range(len(self.program.parts)):
            self.held += 1
            self.add(f"int part{number} = -1;")

    def begin_step(self, number: int) -> None:
        for part, (which, (first, _)) in enumerate(self.parts):
            if first == number:
                self.python.append(f"    part{part} = empty({which.nbytes}, uint8)")
                self.add(f'{{ char* const base = hold(run, {which.nbytes}, "workspace"); if (!base) return 1; part{part} = run.held - 1;')
                self.point_at("base", slots_in(self.program, which), which.offset)
                self.add("}")

    def end_step(self, number: int) -> None:
        for part, (_, (_, last)) in enumerate(self.parts):
            if last == number:
                self.add(f"give_back(run, part{part});")

    def settle(self, name: str, target: str, label: str) -> None:
        super().settle(name, target, label)
        self.staged.pop(name, None)

    # kernels

    def launch(self, step: Kernel) -> None:
        for name in step_writes(step):
            if self.buffers[name].on_cpu:
                raise Unsupported(f"{step.name} ({', '.join(step.origins)}) writes a tensor on the CPU from a graph for the GPU")
        for name in dict.fromkeys(step_reads(step)):
            if self.buffers[name].on_cpu and name not in self.staged:
                self._stage(name)
        for launch in self.launches[step.name]:
            self._launch(launch)

    def _launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        if launch.wide is not None and kernel.reach is not None:
            self.add(f"if (__builtin_expect(({self.size(kernel.reach)}) >= INT64_C({1 << 31}), 0)) {{")
            self._queue(launch.wide)
            self.add("} else {")
            self._queue(launch)
            self.add("}")
        else:
            self._queue(launch)
        names = ", ".join(a.buffer or str(a.symbol) for a in kernel.arguments)
        self.python.append(f"    {kernel.name}[{kernel.grid}]({names})")

    def _queue(self, launch: Launch) -> None:
        """Writes one launch: addresses of the arguments in their natural C types, then of the two hidden ones."""
        self.held += 1  # room for its scratch memory, should it need some
        self.add("{ void *scratch = 0, *profile = 0;")
        places = [self._argument(argument, number) for number, argument in enumerate(launch.kernel.arguments)]
        self.add(f"void* arguments[] = {{{', '.join([*places, '&scratch', '&profile'])}}};")
        self.add(f"if (launch(run, {launch.image}, {self.size(launch.kernel.grid)}, arguments, &scratch)) return 1; }}")

    def _argument(self, argument: Argument, number: int) -> str:
        """Address of one argument."""
        if argument.kind == "buffer":
            return f"&{self.staged.get(argument.buffer, self.pointer(argument.buffer))}"
        assert argument.symbol is not None
        value, kind = self.names[argument.symbol], _C_TYPES[argument.type]
        self.add(f"{kind} n{number} = ({kind}){value};")
        return f"&n{number}"

    def _stage(self, name: str) -> None:
        """Brings a buffer of the host to where kernels can read it, for the rest of the call."""
        buffer, place = self.buffers[name], f"g{self.number[name]}"
        self.lines.insert(0, f"  void* {place} = 0;")
        self.staged[name] = place
        if all(n == 1 for n in buffer.size):
            self.add(f"{place} = host_numbers + {NUMBER * self.numbers};")
            self.numbers += 1
            self.add(f"if (put(run, {place}, {self.pointer(name)}, {buffer.dtype.itemsize})) return 1;")
            return
        target, label = self.new_owned(), f"{name} to the device"
        sizes, strides = self.ints(buffer.size), self.ints(buffer.stride)
        self.empty(buffer, sizes, strides, "1, run.device", target, label)
        self.call("aoti_torch_copy_", f"{target}, {self.handle[name]}, 0", label)
        self.call("aoti_torch_get_data_ptr", f"{target}, &{place}", label)

    # library calls and reads

    def library(self, call: LibraryCall, label: str) -> None:
        self.keeping = self.keeps
        emit_library(self, call, label)
        self.keeping = False

    def tensor_at(self, place: str, view: View, dtype: int, step: str) -> str:
        """Operands of library calls stay from call to call: weights lie where they lay, and so does the workspace, as a rule."""
        fixed = all(isinstance(n, int | sympy.Integer) for n in (*view.size, *view.stride))
        if not self.keeping or not fixed or self.buffers[view.buffer].on_cpu:
            return super().tensor_at(place, view, dtype, step)
        name, spare = f"k{self.kept}", self.new_owned()
        sizes, strides = self.ints(view.size), self.ints(view.stride)
        self.add(f"void* {name} = keep(run, {self.kept}, {place}, {len(view.size)}, {sizes}, {strides}, {dtype}, &{spare});")
        self.add(f"if (__builtin_expect(!{name}, 0)) return {self.failure(step)};")
        self.kept += 1
        return name

    def in_place(self, call: LibraryCall) -> bool:
        return writes_in_place(call)

    def element(self, view: View) -> str:
        buffer = self.buffers[view.buffer]
        dtype = view.dtype or buffer.dtype
        place = f"(const {storage(dtype)}*){self.pointer(view.buffer)} + {self.size(view.offset)}"
        if buffer.on_cpu:
            return f"*({place})"
        name = f"item{len(self.lines)}"
        self.add(f"{storage(dtype)} {name}; if (fetch(run, &{name}, {place}, {dtype.itemsize})) return 1;")
        return name

    def pack(self, number: int, pack: Pack) -> None:
        raise NotImplementedError("weights are not packed for libraries of the GPU")

    # the translation unit

    def sibling(self, steps: Sequence[RunStep]) -> CudaHostWriter:
        self.second = CudaHostWriter(self.program, steps, self.launches, self.images, self.inference)
        self.second.lent = {}  # `precast_prepare` has no outputs
        self.second.keeps = False  # it runs once
        return self.second

    def failure(self, step: str) -> str:
        return f"torch_error(run, {json.dumps(step)})"

    def empty(self, buffer: Buffer, sizes: str, strides: str, place: str, target: str, step: str) -> None:
        shim = self.table.use("aoti_torch_empty_strided")
        arguments = f"{len(buffer.size)}, {sizes}, {strides}, {dtype_code(buffer)}, {place}, &{target}"
        nbytes = self.size(nbytes_of(buffer))
        self.add(f"if (__builtin_expect({shim}({arguments}), 0)) return no_memory(run, {nbytes}, {json.dumps(step)});")

    def misfit(self) -> str:
        return "unfit"

    def helpers(self) -> str:
        for shim in CUDA_SHIMS:
            own = shim.startswith(("cu", "aoti_torch_cuda_caching", "aoti_torch_create_", "aoti_torch_delete_", "aoti_torch_get_"))
            if own and (self.rows is not None or shim not in ROWS_SHIMS):
                self.table.use(shim)
        lent = ", ".join(map(str, [*self.taken, -1]))
        draws = any(may_draw(step) for step in (*self.steps, *(self.second.steps if self.second else ())))
        parts = [
            f'extern "C" __attribute__((visibility("default"))) const int64_t precast_draws = {int(draws)};',
            f'extern "C" __attribute__((visibility("default"))) const int32_t precast_lent[] = {{{lent}}};',
            f"enum {{ HELD = {max(self.held, self.second.held if self.second else 0, 1)}, KEPT = {max(self.kept, 1)} }};",
            'extern "C" int sched_yield();',
            'extern "C" void* malloc(__SIZE_TYPE__); extern "C" void free(void*);' if self.rows is not None else "",
            f"static void* functions[64][{max(self.images, 1)}];",
            RUNTIME,
            KERNEL_INFO,
            KERNELS,
        ]
        if self.program.constants:
            parts.append(LITERALS.replace("LITERAL_WORDS", literal_words(_literal_block(self.program, self.offsets))))
        return "\n".join(parts)

    def _first(self) -> str:
        positions = self._on_device()
        return f"inputs[{positions[0]}]" if positions else "0"

    def run_function(self, state: str, pointers: str, body: str) -> str:
        run = CUDA_RUN.format(state=state, owned=max(self.owned, 1), first=self._first(), pointers=pointers, body=body)
        return run if self.rows is None else run + rows_function(self.rows, self.program)

    def prepare_functions(self, nbytes: int, pointers: str, body: str) -> str:
        return CUDA_PREPARE.format(owned=max(self.owned, 1), first=self._first(), bytes=nbytes, pointers=pointers, body=body)


_C_TYPES = {"i32": "int32_t", "i64": "int64_t", "fp64": "double"}


def _buffers(kernel: TritonKernel) -> list[str]:
    return [a.buffer for a in kernel.arguments if a.kind == "buffer"]


def _span(buffer: Buffer) -> sympy.Expr | int:
    return nbytes_of(buffer, 1)


def kernel_table(metadata: Sequence[Mapping[str, object]]) -> str:
    """The translation unit with what host programs read of the images. Raises TypeError for a kind of launch that they do not make."""
    rows = ", ".join(_info(m) for m in metadata) or '{"", "", 0, 0, 0}'
    return f"#include <stdint.h>\n{KERNEL_INFO}const KernelInfo kernels[] = {{{rows}}};\n"


def _info(metadata: Mapping[str, object]) -> str:
    """One row of the table of kernels. Raises TypeError for a kind of launch that host programs do not make."""
    if metadata["num_ctas"] != 1 or metadata["launch_cooperative_grid"] or metadata["profile_scratch_size"]:
        raise TypeError(f"kernel {metadata['entry']} needs a cluster or a cooperative launch, which host programs do not make")
    names = f"{json.dumps(metadata['entry'])}, {json.dumps(metadata['entry'])}"
    return f"{{{names}, {metadata['block']}, {metadata['shared']}, {metadata['global_scratch_size']}}}"


def _literal_offsets(program: Program) -> dict[str, int]:
    """Where each literal lies in the block that is uploaded."""
    offsets, top = {}, 0
    for constant in program.constants:
        offsets[constant.buffer] = top
        top += -(-max(len(constant.data), 1) // 64) * 64
    return offsets


def _literal_block(program: Program, offsets: Mapping[str, int]) -> bytes:
    block = bytearray(max(offsets.values()) + 64)
    for constant in program.constants:
        start = offsets[constant.buffer]
        block[start : start + len(constant.data)] = constant.data
    return bytes(block)
