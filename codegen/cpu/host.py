"""The host program on the CPU: kernels are functions of the same translation unit, temporaries lie in a cached block."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from precast.codegen.common.library_steps import LibraryCall, Pack, RunStep
from precast.codegen.cpp.kernel import RenderedKernel
from precast.codegen.cpp.types import storage
from precast.codegen.cpu.library_calls import emit_library, emit_pack, writes_in_place
from precast.codegen.host.step_effects import step_writes
from precast.codegen.host.templates import CPU_MARK, MEMORY, PREPARE, RUN
from precast.codegen.host.writer import HostWriter, literal_words
from precast.lowering.analysis.buffer_bytes import nbytes_of
from precast.lowering.ir.nodes import Kernel, Program, View

HUGE = 4 << 20
"""Bytes from which a fresh output asks for huge pages."""
KEPT = 128 << 10
"""Bytes of a library's result from which glibc would map it afresh at each call (its initial threshold)."""


class CpuHostWriter(HostWriter):
    """`kernels` by step name, `functions` of generated attention by identity of the step, `lanes` f32 in a vector of the target."""

    def __init__(
        self,
        program: Program,
        steps: Sequence[RunStep],
        kernels: dict[str, RenderedKernel],
        functions: dict[int, str],
        inference: bool = False,
        lanes: int = 1,
    ) -> None:
        super().__init__(program, steps, inference)
        self.kernels = kernels
        self.functions = functions
        self.lanes = lanes

    def lies_on(self, buffer: str) -> str:
        return "0, 0"

    def allocate(self, name: str, step: str) -> None:
        super().allocate(name, step)
        nbytes = nbytes_of(self.buffers[name])
        if not isinstance(nbytes, int | sympy.Integer):
            self.add(f"if (({self.size(nbytes)}) >= {HUGE}) huge_pages({self.pointer(name)}, {self.size(nbytes)});")
        elif nbytes >= HUGE:
            self.add(f"huge_pages({self.pointer(name)}, {nbytes});")

    def literals(self) -> None:
        """They lie in the library's read-only data."""
        for constant in self.program.constants:
            number = self.number[constant.buffer]
            self.statics.append(f"alignas(64) static const uint64_t literal{number}[] = {{{literal_words(constant.data)}}};")
        self.point_at_literals()
        for constant in self.program.constants:
            if constant.buffer in self.output_buffers:
                source = f"literal{self.number[constant.buffer]}"
                self.allocate(constant.buffer, f"literal {constant.buffer}")
                self.add(f"__builtin_memcpy({self.pointer(constant.buffer)}, {source}, {len(constant.data)});")

    def point_at_literals(self) -> None:
        for constant in self.program.constants:
            self.add(f"{self.pointer(constant.buffer)} = (void*)literal{self.number[constant.buffer]};")

    def workspace(self) -> None:
        if self.slots:
            self.add(f"char* const base = workspace.get({self.size(self.program.workspace_bytes)});")
            self.add('if (!base) { say(error, capacity, "out of memory: the workspace could not be allocated"); return 1; }')
            self.point_at_slots()
        self._library_blocks()

    def _library_blocks(self) -> None:
        """Where libraries allocate large results, says where those shall lie."""
        own = [s.out for s in self.steps if isinstance(s, LibraryCall) and not writes_in_place(s)]
        sizes = [nbytes_of(self.buffers[name]) for name in own]
        known = [int(n) for n in sizes if isinstance(n, int | sympy.Integer)]
        largest = max(known, default=0)
        if largest >= KEPT or len(known) < len(sizes):
            self.add("LibraryBlocks library_blocks;")

    def launch(self, step: Kernel) -> None:
        kernel = self.kernels[step.name]
        from_buffers = [
            f"({'' if b in step_writes(step) else 'const '}{storage(self.buffers[b].dtype)}*){self.pointer(b)}" for b in kernel.arguments
        ]
        sizes = [self.size(s) for s in kernel.symbols]
        self.add(f"{kernel.name}({', '.join([*from_buffers, *sizes, 'threads', '&fault'])});")
        if kernel.checks:
            self.add("if (__builtin_expect(fault.set, 0)) return say_index(fault, error, capacity);")
        self.python.append(f"    {step.name}({', '.join(kernel.arguments)})")

    def library(self, call: LibraryCall, label: str) -> None:
        emit_library(self, call, label)

    def in_place(self, call: LibraryCall) -> bool:
        return writes_in_place(call)

    def element(self, view: View) -> str:
        dtype = view.dtype or self.buffers[view.buffer].dtype
        return f"((const {storage(dtype)}*){self.pointer(view.buffer)})[{self.size(view.offset)}]"

    def pack(self, number: int, pack: Pack) -> None:
        emit_pack(self, number, pack, f"packed weight {number}")

    def sibling(self, steps: Sequence[RunStep]) -> CpuHostWriter:
        made = CpuHostWriter(self.program, steps, self.kernels, self.functions, self.inference, self.lanes)
        made.missing = self.missing
        return made

    def helpers(self) -> str:
        self.table.use("torch_get_num_threads")
        return CPU_MARK + MEMORY

    def run_function(self, state: str, pointers: str, body: str) -> str:
        return RUN.format(state=state, owned=max(self.owned, 1), threads="torch_get_num_threads", pointers=pointers, body=body)

    def prepare_functions(self, nbytes: int, pointers: str, body: str) -> str:
        return PREPARE.format(owned=max(self.owned, 1), bytes=nbytes, threads="torch_get_num_threads", pointers=pointers, body=body)
