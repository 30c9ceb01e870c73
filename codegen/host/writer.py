"""The host program: C++ that allocates, launches kernels and calls library ops in order, and its readable Python rendering."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence

import sympy
import torch

from precast.codegen.common.library_steps import LibraryCall, Pack, RunStep, weight_view
from precast.codegen.common.torch_names import dtype_code, torch_name
from precast.codegen.cpp.index_printer import IndexPrinter
from precast.codegen.host.extern_steps import emit_extern
from precast.codegen.host.shims import SymbolTable
from precast.codegen.host.sizes import emit_bindings
from precast.codegen.host.step_effects import step_reads, step_writes
from precast.codegen.host.templates import ENTERED, MARKS, MESSAGES, NEEDS_STATE, STATE
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import Buffer, Extern, Kernel, Program, Size, Slot, View


class HostWriter(ABC):
    """Writes the entry points. What differs between devices are the abstract methods (`host.py`, `host.py`).

    `inference`: calls are made in inference mode. Buffer `b` has a data pointer `d_b`; owned tensor handles live in `own[]`, which frees
    them on each way out.
    """

    missing: frozenset[str] = frozenset()
    """C functions of torch's that it lacks here: what can be done without them is."""
    frees_inputs = False
    """Whether callers hand over handles of the inputs that `precast_frees` lists: freed after their last use, and NULL then."""

    def __init__(self, program: Program, steps: Sequence[RunStep], inference: bool = False) -> None:
        self.program = program
        self.inference = inference
        self.steps = steps
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
        self.lent: dict[str, int] = {}  # buffer -> the output whose tensor, where the caller gives one, becomes the buffer's
        self.taken: list[int] = []  # those outputs, as far as steps have come
        self.freed: list[int] = []  # inputs that are freed, as far as steps have come

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
        self.add(f"if (__builtin_expect({self.table.use(shim)}({arguments}), 0)) return {self.failure(step)};")

    def _last_uses(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for number, step in enumerate(self.steps):
            for name in (*step_reads(step), *step_writes(step)):
                last[name] = number
        return last

    # what each device has its own way for

    @abstractmethod
    def lies_on(self, buffer: str) -> str:
        """C++ text of the device type and index of a buffer's memory: "0, 0"."""

    @abstractmethod
    def literals(self) -> None:
        """Puts the literals of the user's code into the library, and those that are results into memory of their own."""

    @abstractmethod
    def point_at_literals(self) -> None:
        """Points at the literals where they can be read."""

    def bound(self, name: str) -> None:
        """Called for each input once its pointer and the call's sizes are known."""
        return None

    @abstractmethod
    def workspace(self) -> None:
        """The memory of this call, and where in it the temporaries lie."""

    @abstractmethod
    def launch(self, step: Kernel) -> None:
        """Runs a kernel."""

    @abstractmethod
    def library(self, call: LibraryCall, label: str) -> None:
        """A library call with its implementation already chosen."""

    @abstractmethod
    def in_place(self, call: LibraryCall) -> bool:
        """Whether the call writes memory that the host program supplies; others return a tensor of their own."""

    @abstractmethod
    def element(self, view: View) -> str:
        """C++ expression of the first element of `view`, as it is stored; may write lines before."""

    @abstractmethod
    def pack(self, number: int, pack: Pack) -> None:
        """Makes packed weight `number`, in `precast_prepare`."""

    def failure(self, step: str) -> str:
        """C++ expression that leaves the message of a failed shim call and is not 0."""
        return f"fail(table, error, capacity, {json.dumps(step)})"

    def misfit(self) -> str:
        """Name of the C++ function that tells whether a library's result has to be copied into the planned layout."""
        return "differs"

    @abstractmethod
    def sibling(self, steps: Sequence[RunStep]) -> HostWriter:
        """A writer of the same kind, for the steps of `precast_prepare`."""

    @abstractmethod
    def helpers(self) -> str:
        """C++ that the entry points rely on."""

    @abstractmethod
    def run_function(self, state: str, pointers: str, body: str) -> str:
        """`precast_run` around its body."""

    @abstractmethod
    def prepare_functions(self, nbytes: int, pointers: str, body: str) -> str:
        """`precast_prepare`, whose state has `nbytes` of memory, and `precast_release`."""

    # handles

    def view_handle(self, view: View, step: str) -> str:
        """Borrowed handle for a view of a buffer."""
        buffer = self.buffers[view.buffer]
        same = view.size == buffer.size and view.stride == buffer.stride and view.offset == 0 and view.dtype in (None, buffer.dtype)
        if same and view.buffer in self.handle:
            return self.handle[view.buffer]
        place = f"(char*){self.pointer(view.buffer)} + ({self.size(view.offset)}) * (int64_t){max(buffer.dtype.itemsize, 1)}"
        typed = buffer if view.dtype is None else Buffer(buffer.name, view.dtype, view.size, view.stride)
        return self.tensor_at(place, view, dtype_code(typed), step)

    def tensor_at(self, place: str, view: View, dtype: int, step: str) -> str:
        """Handle of a tensor over the memory at `place`, with the view's sizes and strides; it lives as long as the call."""
        target, sizes, strides = self.new_owned(), self.ints(view.size), self.ints(view.stride)
        arguments = f"{place}, {len(view.size)}, {sizes}, {strides}, 0, {dtype}, {self.lies_on(view.buffer)}, &{target}"
        self.call("aoti_torch_create_tensor_from_blob", arguments, step)
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
        arguments = f"{base}, {len(view.size)}, {sizes}, {strides}, {self.size(view.offset)}, {target}"
        self.call("aoti_torch__reinterpret_tensor", arguments, step)

    def allocate(self, name: str, step: str) -> None:
        """A fresh tensor for buffer `name`."""
        buffer, target = self.buffers[name], self.new_owned()
        sizes, strides = self.ints(buffer.size), self.ints(buffer.stride)
        position = self.lent.pop(name, None)
        if position is not None:
            self._take(position, buffer, sizes, strides, target, step)
        self.empty(buffer, sizes, strides, self.lies_on(name), target, step)
        if position is not None:
            self.add("}")
        self.adopt(name, target, step)

    def empty(self, buffer: Buffer, sizes: str, strides: str, place: str, target: str, step: str) -> None:
        """Makes `target` a fresh tensor like `buffer`, whose arrays of sizes and strides are given."""
        arguments = f"{len(buffer.size)}, {sizes}, {strides}, {dtype_code(buffer)}, {place}, &{target}"
        self.call("aoti_torch_empty_strided", arguments, step)

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
        """`precast_run`, into `lines`."""
        self.mark(ENTERED)
        self.inputs()
        self.literals()
        self.persistent()
        self.workspace()
        self.run_steps("step", marked=True)
        self.mark(len(self.steps))
        self.outputs()

    def mark(self, number: int) -> None:
        """Leaves the time, where a profiler asks for it: before step `number`, and behind the last."""
        self.add(f"MARK({number});")

    def run_steps(self, word: str, marked: bool = False) -> None:
        for number, step in enumerate(self.steps):
            label = self._label(f"{word} {number}", step)
            self.add(f"// {label}")
            if marked:
                self.mark(number)
            self.begin_step(number)
            self._prepare_outputs(step, label)
            match step:
                case Kernel():
                    self.launch(step)
                case Extern():
                    emit_extern(self, step, label)
                case LibraryCall():
                    self.library(step, label)
            for name in dict.fromkeys((*step_reads(step), *step_writes(step))):
                if self.last_use[name] != number or name in self.output_buffers:
                    continue
                if name not in self.given:
                    self.release(name)
                elif self.frees_inputs and name in self.program.inputs:
                    self._free_input(name)
            self.end_step(number)

    def _free_input(self, name: str) -> None:
        position = self.program.inputs.index(name)
        place = f"inputs[{position}]"
        if self.handle[name] == place:  # and no copy of it on another device
            self.freed.append(position)
            self.add(f"{self.table.use('aoti_torch_delete_tensor_object')}({place}); const_cast<void**>(inputs)[{position}] = 0;")

    def begin_step(self, number: int) -> None:
        """Called before what a step does is written."""
        return None

    def end_step(self, number: int) -> None:
        """Called after it."""
        return None

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

    def inputs(self) -> None:
        for position, item in enumerate(self.program.inputs):
            if isinstance(item, str):
                self.handle[item] = f"inputs[{position}]"
                self.call("aoti_torch_get_data_ptr", f"inputs[{position}], (void**)&{self.pointer(item)}", f"input {position}")
        self.python.append(f"def {self.program.name or 'run'}({', '.join(str(i) for i in self.program.inputs)}):")
        emit_bindings(self)
        for position, item in enumerate(self.program.inputs):
            if isinstance(item, str):
                if item in self.last_use:
                    self.has_memory(position, item)
                self.bound(item)

    def has_memory(self, position: int, name: str) -> None:
        """Ends the call where an input has elements and no memory, such as after `t.untyped_storage().resize_(0)` of it or its base."""
        count = sympy.Mul(*self.buffers[name].size)
        if count == 0:
            return
        some = "" if count.is_Integer else f" && ({self.size(count)}) > 0"
        pointer = self.pointer(name)  # of a view: where it would begin, counted from 0
        self.add(f"if (__builtin_expect(!((uint64_t){pointer} >> 40), 0){some}) {{ int64_t start = 0;")
        self.call("aoti_torch_get_storage_offset", f"inputs[{position}], &start", f"input {position}")
        itemsize = getattr(torch, torch_name(self.buffers[name])).itemsize
        self.add(f"if ((int64_t){pointer} == start * {itemsize}) return say_no_memory({position}, error, capacity); }}")

    @property
    def prepares(self) -> bool:
        """Whether the library keeps a prepared state."""
        return bool(self.packs or self.program.persistent)

    def point_at_slots(self) -> None:
        """Temporaries at their places in the workspace, whose memory begins at `base`."""
        self.python.append(f"    workspace = empty({self.program.workspace_bytes}, uint8)")
        self.point_at("base", self.program.workspace)

    def point_at(self, base: str, slots: Sequence[Slot], begin: int = 0) -> None:
        """Points at the temporaries in memory that `base` names, in which byte `begin` of the workspace is the first."""
        for slot in slots:
            if slot.buffer not in self.output_buffers:
                self.add(f"{self.pointer(slot.buffer)} = {base} + {self.size(slot.offset - begin)};")

    def persistent(self) -> None:
        """Buffers that `precast_prepare` filled, in the prepared state's block."""
        if not self.prepares:
            return
        offset = 0
        for name in self.program.persistent:
            self.add(f"{self.pointer(name)} = prepared->memory + {offset};")
            offset += _padded_bytes(self.buffers[name])

    def _prepare_outputs(self, step: RunStep, label: str) -> None:
        """Memory for what a step writes: kernels and `out=` calls need it before, other calls bring theirs, or fill what is empty yet."""
        if isinstance(step, LibraryCall) and not self.in_place(step):
            return
        for name in step.mutates if isinstance(step, Extern) else step_writes(step):
            fixed = name in self.slots and name not in self.output_buffers
            if name not in self.handle and not fixed and name not in self.given:
                self.allocate(name, label)

    def settle(self, name: str, target: str, label: str) -> None:
        """Adopts a library result; one whose strides are not the planned ones is copied into those."""
        buffer = self.buffers[name]
        self.settled.add(name)
        if buffer.size:
            fresh = self.new_owned()
            sizes, strides = self.ints(buffer.size), self.ints(buffer.stride)
            self.add(f"if ({self.misfit()}(table, {target}, {len(buffer.size)}, {sizes}, {strides})) {{")
            self.table.use("aoti_torch_get_strides")
            self.empty(buffer, sizes, strides, self.lies_on(name), fresh, label)
            self.call("aoti_torch_copy_", f"{fresh}, {target}, 0", label)
            self.add(f"{self.table.use('aoti_torch_delete_tensor_object')}({target}); {target} = {fresh}; {fresh} = 0;")
            self.add("}")
        if name in self.slots and name not in self.output_buffers and buffer.dtype.value == "other":
            raise TypeError(f"{label}: buffer {name} of an opaque dtype has a workspace slot")
        self.adopt(name, target, label)

    def outputs(self) -> None:
        uses: dict[str, int] = {}
        for position, output in enumerate(self.program.outputs):
            if output.view is None:
                value = "0" if output.scalar is None else self.size(output.scalar)
                self.add(f"outputs[{position}] = (void*)(int64_t)({value});")
                continue
            uses[output.view.buffer] = uses.get(output.view.buffer, 0) + 1
            self._output(position, output.view)
        self.python.append(f"    return {', '.join('None' if o.view is None else o.view.buffer for o in self.program.outputs)}")

    def lendable(self) -> dict[str, int]:
        """Of each buffer with an output in it, the first position of one."""
        found: dict[str, int] = {}
        for position, output in enumerate(self.program.outputs):
            view = output.view
            if view is not None and view.buffer not in self.given and view.dtype in (None, self.buffers[view.buffer].dtype):
                found.setdefault(view.buffer, position)
        return found

    def _take(self, position: int, buffer: Buffer, sizes: str, strides: str, target: str, step: str) -> None:
        """Opens the alternatives of a lent output: its storage becomes the buffer's, or (for the caller to write) there is none."""
        self.taken.append(position)
        free = self.table.use("aoti_torch_delete_tensor_object")
        self.add(f"if (outputs[{position}]) {{ int64_t start = 0;")
        self.call("aoti_torch_get_storage_offset", f"outputs[{position}], &start", step)
        arguments = f"outputs[{position}], {len(buffer.size)}, {sizes}, {strides}, -start, &{target}"
        self.call("aoti_torch__reinterpret_tensor", arguments, step)
        self.add(f"{free}(outputs[{position}]); outputs[{position}] = 0;")
        self.add("} else {")

    def _whole(self, view: View) -> bool:
        buffer = self.buffers[view.buffer]
        return view.size == buffer.size and view.stride == buffer.stride and view.offset == 0 and view.dtype in (None, buffer.dtype)

    def _output(self, position: int, view: View) -> None:
        """A fresh handle on the buffer's tensor, or on a view of its storage."""
        label = f"output {position}"
        handle = self.handle.get(view.buffer)
        if handle is None:  # an empty tensor, which no step needs to write
            self.allocate(view.buffer, label)
            handle = self.handle[view.buffer]
        same = self._whole(view)
        loose = view.buffer in self.settled and any(n == 1 or not isinstance(n, int | sympy.Integer) for n in view.size)
        if same and not loose:  # a library leaves the strides of dimensions of one element as it likes
            self.call("aoti_torch_new_tensor_handle", f"{handle}, &outputs[{position}]", label)
            return
        self.reinterpret(handle, view, f"&outputs[{position}]", label)

    # the translation unit

    def source(self, packs: Sequence[Pack] = (), prepare: Sequence[RunStep] = ()) -> str:
        """The host half of the translation unit (kernels come before it); `prepare` are the expanded steps of the prepare function."""
        self.packs = packs
        self.write()
        prepared = self._prepare_source(prepare) if self.prepares else ""
        for shim in ("aoti_torch_delete_tensor_object", "?torch_exception_get_what_without_backtrace", "aoti_torch_get_strides"):
            self.table.use(shim)
        helpers = self.helpers()
        state = NEEDS_STATE if self.prepares else "  (void)state;\n"
        run = self.run_function(state, self._pointers(), "\n".join(self.lines))
        externs = json.dumps(json.dumps(self.externs, separators=(",", ":")))
        tail = f'extern "C" const char precast_externs[] = {externs};\nextern "C" const int64_t precast_abi = 1;\n'
        if self.freed:
            tail += f'extern "C" const int32_t precast_frees[] = {{{", ".join(map(str, [*self.freed, -1]))}}};\n'
        return "\n".join(
            [
                "#pragma GCC visibility push(default)",
                self.table.definitions(),
                tail,
                "#pragma GCC visibility pop",
                MESSAGES,
                MARKS,
                helpers,
                *self.statics,
                STATE.format(packs=max(len(packs), 1)) if self.prepares else "",
                run,
                prepared,
            ]
        )

    def _pointers(self) -> str:
        return "".join(f"  void* d{i} = 0;\n" for i in range(len(self.number)))

    def _prepare_source(self, prepare: Sequence[RunStep]) -> str:
        """`precast_prepare` and `precast_release`; without them the runtime never asks for a state."""
        second = self.sibling(prepare)
        second.packs, second.table, second.statics, second.arrays = self.packs, self.table, self.statics, self.arrays
        second.externs = self.externs
        second.write_prepare()
        total = sum(_padded_bytes(self.buffers[n]) for n in self.program.persistent)
        return second.prepare_functions(max(total, 64), self._pointers(), "\n".join(second.lines))

    def write_prepare(self) -> None:
        """`precast_prepare`, into `lines`."""
        needed = {n for s in self.steps for n in step_reads(s)} | {weight_view(p.step).buffer for p in self.packs}
        for position, item in enumerate(self.program.inputs):
            if isinstance(item, str) and item in needed:
                self.handle[item] = f"inputs[{position}]"
                self.call("aoti_torch_get_data_ptr", f"inputs[{position}], (void**)&{self.pointer(item)}", f"input {position}")
                self.has_memory(position, item)
                self.bound(item)
        self.point_at_literals()
        self.persistent()
        self.run_steps("prepare step")
        for number, pack in enumerate(self.packs):
            self.pack(number, pack)


def literal_words(data: bytes) -> str:
    """Bytes as C++ 64-bit numbers, at least one."""
    padded = data + b"\0" * (-len(data) % 8 or (8 if not data else 0))
    return ", ".join(f"0x{int.from_bytes(padded[i : i + 8], 'little'):x}u" for i in range(0, len(padded), 8))


def _padded_bytes(buffer: Buffer) -> int:
    """Bytes of a persistent buffer, rounded up to a cache line."""
    span = (
        1 + sum((int(n) - 1) * int(s) for n, s in zip(buffer.size, buffer.stride, strict=True)) if all(int(n) for n in buffer.size) else 0
    )
    return -(-span * buffer.dtype.itemsize // 64) * 64
