"""The host program: C++ that allocates, launches kernels and calls library ops in order, and its readable Python rendering."""

from __future__ import annotations

import json
from collections.abc import Sequence

import sympy

from precast.codegen.cpp_index import IndexPrinter
from precast.codegen.cpp_kernel import RenderedKernel
from precast.codegen.cpp_types import storage
from precast.codegen.expand import LibraryCall, Pack, RunStep, views_of
from precast.codegen.host_dispatch import dispatch, encodable
from precast.codegen.host_extern import encode_call
from precast.codegen.host_library import emit_library, emit_pack, weight_view, writes_in_place
from precast.codegen.host_shims import SymbolTable, dtype_code
from precast.codegen.host_sizes import emit_bindings, emit_check, emit_item, emit_let, emit_sizes_of_results
from precast.codegen.host_templates import HOST_PROLOGUE, NEEDS_STATE, PREPARE, RUN, STATE
from precast.codegen.values import store_roots
from precast.lowering.effects import is_custom
from precast.lowering.ir import CHECK, ITEM, LET, POSITION, RANGE, Buffer, Constant, Extern, Kernel, Load, Program, Size, View, walk
from precast.lowering.memory import nbytes_of
from precast.lowering.reals import is_real

HUGE = 4 << 20
"""Bytes from which a fresh output asks for huge pages."""
KEPT = 128 << 10
"""Bytes of a library's result from which glibc would map it afresh at each call (its initial threshold)."""


def step_reads(step: RunStep) -> list[str]:
    """Buffers that a step reads."""
    match step:
        case Kernel(stores=stores):
            roots = [v for s in stores for v in store_roots(s)]
            return [n.buffer for n in walk(*roots) if isinstance(n, Load)] + [s.buffer for s in stores if s.mode != "set"]
        case Extern():
            return [v.buffer for v in _views((step.args, tuple(v for _, v in step.kwargs)))]
        case LibraryCall():
            return [v.buffer for v in views_of(step)]


def step_writes(step: RunStep) -> list[str]:
    """Buffers that a step writes."""
    match step:
        case Kernel(stores=stores):
            return list(dict.fromkeys(s.buffer for s in stores))
        case Extern(outs=outs, mutates=mutates):
            return [*outs, *mutates]
        case _:
            return [step.out]


def _views(arg: object) -> list[View]:
    if isinstance(arg, View):
        return [arg]
    if isinstance(arg, tuple | list):
        return [v for a in arg for v in _views(a)]
    return []


class HostWriter:
    """Writes `precast_run`. Buffer `b` has a data pointer `d_b`; owned tensor handles live in `own[]`, which frees them on each way out."""

    def __init__(self, program: Program, steps: Sequence[RunStep], kernels: dict[str, RenderedKernel], functions: dict[int, str]) -> None:
        self.functions = functions
        self.program = program
        self.steps = steps
        self.kernels = kernels
        self.buffers = {b.name: b for b in program.buffers}
        self.number = {b.name: i for i, b in enumerate(program.buffers)}
        self.table = SymbolTable()
        self.lines: list[str] = []
        self.python: list[str] = []
        self.statics: list[str] = []
        self.arrays: dict[tuple[str, ...], str] = {}
        self.owned = 0
        self.handle: dict[str, str] = {}
        self.settled: set[str] = set()
        self.packs: Sequence[Pack] = ()
        self.externs: list[dict[str, object]] = []
        self.names = {s: f"z{i}" for i, s in enumerate(program.symbols)}
        self.slots = {s.buffer: s for s in program.workspace}
        self.last_use = self._last_uses()
        self.given = {c.buffer for c in program.constants} | {i for i in program.inputs if isinstance(i, str)} | set(program.persistent)
        self.output_buffers = {o.view.buffer for o in program.outputs if o.view is not None}

    def add(self, line: str) -> None:
        self.lines.append("  " + line)

    def size(self, size: Size) -> str:
        return IndexPrinter({}).print(sympy.sympify(size), self.names)

    def scalar(self, value: sympy.Expr) -> str:
        """A symbolic number as an int64: an integer, or a double's bits."""
        if not is_real(value):
            return self.size(value)
        return f"double_bits({self.real(value)})"

    def real(self, value: sympy.Expr) -> str:
        return IndexPrinter({}).real(value, self.names)

    def truth(self, condition: sympy.Basic) -> str:
        return IndexPrinter({}).truth(condition, self.names)

    def ints(self, values: Sequence[Size]) -> str:
        """Name of an int64 array: static where all values are known, else a local."""
        texts = tuple(self.size(v) for v in values) or ("0",)
        if texts in self.arrays:
            return self.arrays[texts]
        name = f"a{len(self.arrays)}"
        if all(isinstance(v, int | sympy.Integer) for v in values):
            self.statics.append(f"static const int64_t {name}[] = {{{', '.join(texts)}}};")
            self.arrays[texts] = name
        else:
            name = f"a{len(self.arrays)}_{len(self.lines)}"
            self.add(f"const int64_t {name}[] = {{{', '.join(texts)}}};")
        return name

    def pointer(self, buffer: str) -> str:
        return f"d{self.number[buffer]}"

    def new_owned(self) -> str:
        self.owned += 1
        return f"own.h[{self.owned - 1}]"

    def free_shim(self) -> str:
        """The call that gives a tensor handle back."""
        return self.table.use("aoti_torch_delete_tensor_object")

    def call(self, shim: str, arguments: str, step: str) -> None:
        """A shim call whose failure ends the run with a message that names the step."""
        self.add(f"if (__builtin_expect({self.table.use(shim)}({arguments}), 0)) return fail(table, error, capacity, {json.dumps(step)});")

    def _last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for number, step in enumerate(self.steps):
            for name in (*step_reads(step), *step_writes(step)):
                last[name] = number
        return last

    # handles

    def view_handle(self, view: View, step: str) -> str:
        """Borrowed handle for a view of a buffer."""
        buffer = self.buffers[view.buffer]
        same = view.size == buffer.size and view.stride == buffer.stride and view.offset == 0 and view.dtype in (None, buffer.dtype)
        if same and view.buffer in self.handle:
            return self.handle[view.buffer]
        target = self.new_owned()
        typed = buffer if view.dtype is None else Buffer(buffer.name, view.dtype, view.size, view.stride)
        width = max(buffer.dtype.itemsize, 1)
        place = f"(char*){self.pointer(view.buffer)} + ({self.size(view.offset)}) * (int64_t){width}"
        sizes, strides = self.ints(view.size), self.ints(view.stride)
        self.call(
            "aoti_torch_create_tensor_from_blob",
            f"{place}, {len(view.size)}, {sizes}, {strides}, 0, {dtype_code(typed)}, 0, 0, &{target}",
            step,
        )
        return target

    def tensor_handle(self, view: View, step: str) -> str:
        """A handle that shares the buffer's storage and may outlive the call, where the buffer is a tensor at all (a literal is none)."""
        buffer, base = self.buffers[view.buffer], self.handle.get(view.buffer)
        whole = view.size == buffer.size and view.stride == buffer.stride and view.offset == 0
        if base is None or view.dtype not in (None, buffer.dtype) or whole:
            return self.view_handle(view, step)
        target = self.new_owned()
        self.reinterpret(base, view, f"&{target}", step)
        return target

    def reinterpret(self, base: str, view: View, target: str, step: str) -> None:
        """Writes the call that makes `target` a view on the storage of the tensor `base`, counted from its own first element."""
        sizes, strides = self.ints(view.size), self.ints(view.stride)
        self.add("{ int64_t start = 0;")
        self.call("aoti_torch_get_storage_offset", f"{base}, &start", step)
        place = f"start + ({self.size(view.offset)})"
        self.call("aoti_torch__reinterpret_tensor", f"{base}, {len(view.size)}, {sizes}, {strides}, {place}, {target}", step)
        self.add("}")

    def allocate(self, name: str, step: str) -> None:
        """A fresh tensor for buffer `name`."""
        buffer, target = self.buffers[name], self.new_owned()
        sizes, strides = self.ints(buffer.size), self.ints(buffer.stride)
        self.call("aoti_torch_empty_strided", f"{len(buffer.size)}, {sizes}, {strides}, {dtype_code(buffer)}, 0, 0, &{target}", step)
        self.adopt(name, target, step)
        nbytes = nbytes_of(buffer)
        if not isinstance(nbytes, int | sympy.Integer):
            self.add(f"if (({self.size(nbytes)}) >= {HUGE}) huge_pages({self.pointer(name)}, {self.size(nbytes)});")
        elif nbytes >= HUGE:
            self.add(f"huge_pages({self.pointer(name)}, {nbytes});")

    def adopt(self, name: str, handle: str, step: str) -> None:
        """Makes `handle` the tensor of buffer `name`."""
        self.handle[name] = handle
        self.call("aoti_torch_get_data_ptr", f"{handle}, (void**)&{self.pointer(name)}", step)

    def release(self, name: str) -> None:
        handle = self.handle.pop(name, None)
        if handle is not None and handle.startswith("own.h"):
            self.add(f"{self.table.use('aoti_torch_delete_tensor_object')}({handle}); {handle} = 0;")

    # the program

    def write(self) -> None:
        self._inputs()
        self._constants()
        self._persistent()
        self._workspace()
        self._keep_blocks()
        self._run_steps("step")
        self._outputs()

    def _run_steps(self, word: str) -> None:
        for number, step in enumerate(self.steps):
            label = self._label(f"{word} {number}", step)
            self.add(f"// {label}")
            self._prepare_outputs(step, label)
            match step:
                case Kernel():
                    self._launch(step)
                case Extern():
                    self._extern(step, label)
                case LibraryCall():
                    self._library(step, label)
            for name in dict.fromkeys((*step_reads(step), *step_writes(step))):
                if self.last_use[name] == number and name not in self.output_buffers and name not in self.given:
                    self.release(name)

    def _label(self, position: str, step: RunStep) -> str:
        what = (
            step.name
            if isinstance(step, Kernel)
            else step.op
            if isinstance(step, Extern)
            else f"{step.how} {type(step.step).__name__.lower()}"
        )
        shapes = ", ".join(repr(self.buffers[n]) for n in dict.fromkeys(step_writes(step)) if n in self.buffers)
        return f"{position}: {what} -> {shapes}"

    def _inputs(self) -> None:
        for position, item in enumerate(self.program.inputs):
            if isinstance(item, str):
                self.handle[item] = f"inputs[{position}]"
                self.call("aoti_torch_get_data_ptr", f"inputs[{position}], (void**)&{self.pointer(item)}", f"input {position}")
        self.python.append(f"def {self.program.name or 'run'}({', '.join(str(i) for i in self.program.inputs)}):")
        emit_bindings(self)

    def _constants(self) -> None:
        """Literals of the user's code lie in the library's read-only data."""
        for constant in self.program.constants:
            number = self.number[constant.buffer]
            padded = constant.data + b"\0" * (-len(constant.data) % 8 or (8 if not constant.data else 0))
            words = ", ".join(f"0x{int.from_bytes(padded[i : i + 8], 'little'):x}u" for i in range(0, len(padded), 8))
            self.statics.append(f"alignas(64) static const uint64_t literal{number}[] = {{{words}}};")
            self._point_at_literal(constant)
            if constant.buffer in self.output_buffers:
                self.allocate(constant.buffer, f"literal {constant.buffer}")
                self.add(f"__builtin_memcpy({self.pointer(constant.buffer)}, literal{number}, {len(constant.data)});")

    def _point_at_literal(self, constant: Constant) -> None:
        self.add(f"{self.pointer(constant.buffer)} = (void*)literal{self.number[constant.buffer]};")

    def _persistent(self) -> None:
        """Buffers that `precast_prepare` filled, in the prepared state's block."""
        if not self.prepares:
            return
        offset = 0
        for name in self.program.persistent:
            self.add(f"{self.pointer(name)} = prepared->memory + {offset};")
            offset += _padded_bytes(self.buffers[name])

    def _keep_blocks(self) -> None:
        """Memory that libraries allocate for their results stays mapped between calls, where it is large."""
        own = [s.out for s in self.steps if isinstance(s, LibraryCall) and not writes_in_place(s)]
        sizes = [nbytes_of(self.buffers[name]) for name in own]
        known = [int(n) for n in sizes if isinstance(n, int | sympy.Integer)]
        largest = max(known, default=0)
        if largest >= KEPT or len(known) < len(sizes):
            self.add("keep_blocks();")

    @property
    def prepares(self) -> bool:
        """Whether the library keeps a prepared state."""
        return bool(self.packs or self.program.persistent)

    def prepare_source(self, steps: Sequence[RunStep], shared: HostWriter) -> str:
        """`precast_prepare` and `precast_release`; empty where there is nothing to prepare (the runtime then never asks)."""
        if not self.prepares:
            return ""
        self.table, self.statics, self.arrays, self.externs = shared.table, shared.statics, shared.arrays, shared.externs
        needed = {n for s in steps for n in step_reads(s)} | {weight_view(p.step).buffer for p in self.packs}
        for position, item in enumerate(self.program.inputs):
            if isinstance(item, str) and item in needed:
                self.handle[item] = f"inputs[{position}]"
                self.call("aoti_torch_get_data_ptr", f"inputs[{position}], (void**)&{self.pointer(item)}", f"input {position}")
        for constant in self.program.constants:
            self._point_at_literal(constant)
        self._persistent()
        self._run_steps("prepare step")
        for number, pack in enumerate(self.packs):
            emit_pack(self, number, pack, f"packed weight {number}")
        pointers = "".join(f"  void* d{i} = 0;\n" for i in range(len(self.number)))
        total = sum(_padded_bytes(self.buffers[n]) for n in self.program.persistent)
        return PREPARE.format(
            owned=max(self.owned, 1),
            packs=max(len(self.packs), 1),
            bytes=max(total, 64),
            pointers=pointers,
            body="\n".join(self.lines),
            threads="torch_get_num_threads",
        )

    def _workspace(self) -> None:
        if not self.slots:
            return
        self.add(f"char* const base = workspace.get({self.size(self.program.workspace_bytes)});")
        self.add('if (!base) { say(error, capacity, "out of memory: the workspace could not be allocated"); return 1; }')
        self.python.append(f"    workspace = empty({self.program.workspace_bytes}, uint8)")
        for slot in self.program.workspace:
            if slot.buffer not in self.output_buffers:
                self.add(f"{self.pointer(slot.buffer)} = base + {self.size(slot.offset)};")

    def _prepare_outputs(self, step: RunStep, label: str) -> None:
        """Memory for what a step writes: kernels and `out=` calls need it before, other calls bring theirs."""
        if isinstance(step, Extern) or isinstance(step, LibraryCall) and not writes_in_place(step):
            return
        for name in step_writes(step):
            fixed = name in self.slots and name not in self.output_buffers
            if name not in self.handle and not fixed and name not in self.given:
                self.allocate(name, label)

    def _launch(self, step: Kernel) -> None:
        kernel = self.kernels[step.name]
        from_buffers = [
            f"({'' if b in step_writes(step) else 'const '}{storage(self.buffers[b].dtype)}*){self.pointer(b)}" for b in kernel.arguments
        ]
        sizes = [self.size(s) for s in kernel.symbols]
        threads = "threads"
        self.add(f"{kernel.name}({', '.join([*from_buffers, *sizes, threads, '&fault'])});")
        if kernel.checks:
            self.add("if (__builtin_expect(fault.set, 0)) return say_index(fault, error, capacity);")
        self.python.append(f"    {step.name}({', '.join(kernel.arguments)})")

    def _extern(self, step: Extern, label: str) -> None:
        if step.op == ITEM:
            emit_item(self, step)
            return
        if step.op == LET:
            emit_let(self, step)
            return
        if step.op in (CHECK, RANGE, POSITION):
            emit_check(self, step)
            return
        if not encodable(step):
            self._dispatched(step, label)
            return
        record, tensors, integers = encode_call(step, self.buffers)
        number = len(self.externs)
        self.externs.append(record)
        self.add("{")
        handles = [self.tensor_handle(v, label) if is_custom(step.op) else self.view_handle(v, label) for v in tensors]
        self.add(f"void* in[{max(len(handles), 1)}];")
        for position, handle in enumerate(handles):
            self.call("aoti_torch_new_tensor_handle", f"{handle}, &in[{position}]", label)
        values = ", ".join(self.scalar(i) for i in integers) or "0"
        self.add(f"const int64_t numbers[] = {{{values}}};")
        self.add(f"void* out[{max(len(step.outs), 1)}] = {{0}};")
        shim = self.table.use("precast_call_python")
        self.add(f"if ({shim}({number}, in, {len(handles)}, numbers, {len(integers)}, out, {len(step.outs)}, error, capacity)) return 1;")
        targets = []
        for position, name in enumerate(step.outs):
            if name:  # "": the op gives None here
                target = self.new_owned()
                self.add(f"{target} = out[{position}];")
                targets.append((name, target))
        self.add("}")
        emit_sizes_of_results(self, step, dict(targets), label)
        for name, target in targets:
            self.settle(name, target, label)
        results = f"{', '.join(name or '_' for name in step.outs)} = " if step.outs else ""
        self.python.append(f"    {results}{step.op}({', '.join(v.buffer for v in tensors)})")

    def _dispatched(self, step: Extern, label: str) -> None:
        self.add("{")
        targets = []
        for name, result in zip(step.outs, dispatch(self, step, label), strict=True):
            target = self.new_owned()
            self.add(f"{target} = {result};")
            targets.append((name, target))
        self.add("}")
        emit_sizes_of_results(self, step, dict(targets), label)
        for name, target in targets:
            self.settle(name, target, label)
        self.python.append(f"    {', '.join(step.outs)} = {step.op}({', '.join(v.buffer for v in _views(step.args))})")

    def settle(self, name: str, target: str, label: str) -> None:
        """Adopts a library result; one whose strides are not the planned ones is copied into those."""
        buffer = self.buffers[name]
        self.settled.add(name)
        if buffer.size:
            fresh = self.new_owned()
            sizes, strides = self.ints(buffer.size), self.ints(buffer.stride)
            self.add(f"if (differs(table, {target}, {len(buffer.size)}, {sizes}, {strides})) {{")
            self.table.use("aoti_torch_get_strides")
            self.call("aoti_torch_empty_strided", f"{len(buffer.size)}, {sizes}, {strides}, {dtype_code(buffer)}, 0, 0, &{fresh}", label)
            self.call("aoti_torch_copy_", f"{fresh}, {target}, 0", label)
            self.add(f"{self.table.use('aoti_torch_delete_tensor_object')}({target}); {target} = {fresh}; {fresh} = 0;")
            self.add("}")
        if name in self.slots and name not in self.output_buffers and buffer.dtype.value == "other":
            raise TypeError(f"{label}: buffer {name} of an opaque dtype has a workspace slot")
        self.adopt(name, target, label)

    def _library(self, call: LibraryCall, label: str) -> None:
        """A library call with its implementation already chosen."""
        emit_library(self, call, label)

    def _outputs(self) -> None:
        uses: dict[str, int] = {}
        for position, output in enumerate(self.program.outputs):
            if output.view is None:
                value = "0" if output.scalar is None else self.size(output.scalar)
                self.add(f"outputs[{position}] = (void*)(int64_t)({value});")
                continue
            uses[output.view.buffer] = uses.get(output.view.buffer, 0) + 1
            self._output(position, output.view)
        self.python.append(f"    return {', '.join('None' if o.view is None else o.view.buffer for o in self.program.outputs)}")

    def _output(self, position: int, view: View) -> None:
        """A fresh handle on the buffer's tensor, or on a view of its storage."""
        buffer = self.buffers[view.buffer]
        label = f"output {position}"
        handle = self.handle.get(view.buffer)
        if handle is None:  # an empty tensor, which no step needs to write
            self.allocate(view.buffer, label)
            handle = self.handle[view.buffer]
        same = view.size == buffer.size and view.stride == buffer.stride and view.offset == 0 and view.dtype in (None, buffer.dtype)
        loose = view.buffer in self.settled and any(n == 1 or not isinstance(n, int | sympy.Integer) for n in view.size)
        if same and not loose:  # a library leaves the strides of dimensions of one element as it likes
            self.call("aoti_torch_new_tensor_handle", f"{handle}, &outputs[{position}]", label)
            return
        self.reinterpret(handle, view, f"&outputs[{position}]", label)

    def source(self, packs: Sequence[Pack] = (), prepare: Sequence[RunStep] = ()) -> str:
        """The host half of the translation unit (kernels come before it); `prepare` are the expanded steps of the prepare function."""
        self.packs = packs
        self.write()
        second = HostWriter(self.program, prepare, self.kernels, self.functions)
        second.packs = packs
        prepared = second.prepare_source(prepare, self)
        self.table.use("aoti_torch_delete_tensor_object")
        self.table.use("?torch_exception_get_what_without_backtrace")
        self.table.use("aoti_torch_get_strides")
        threads = self.table.use("torch_get_num_threads")
        pointers = "".join(f"  void* d{i} = 0;\n" for i in range(len(self.number)))
        body = "\n".join(self.lines)
        state = NEEDS_STATE if self.prepares else "  (void)state;\n"
        run = RUN.format(
            state=state,
            owned=max(self.owned, 1),
            outputs=len(self.program.outputs),
            threads=threads,
            pointers=pointers,
            body=body,
        )
        externs = json.dumps(json.dumps(self.externs, separators=(",", ":")))
        tail = f'extern "C" const char precast_externs[] = {externs};\nextern "C" const int64_t precast_abi = 1;\n'
        return "\n".join(
            [
                "#pragma GCC visibility push(default)",
                self.table.definitions(),
                tail,
                "#pragma GCC visibility pop",
                HOST_PROLOGUE,
                *self.statics,
                STATE.format(packs=max(len(packs), 1)) if self.prepares else "",
                run,
                prepared,
            ]
        )


def _padded_bytes(buffer: Buffer) -> int:
    """Bytes of a persistent buffer, rounded up to a cache line."""
    span = (
        1 + sum((int(n) - 1) * int(s) for n, s in zip(buffer.size, buffer.stride, strict=True)) if all(int(n) for n in buffer.size) else 0
    )
    return -(-span * buffer.dtype.itemsize // 64) * 64
