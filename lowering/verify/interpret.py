"""The oracle: runs any `Program`, scheduled or not, with plain torch on the CPU. Slow, vectorised over whole axis grids, and simple on
purpose.

Memory is honest. Fresh buffers are poisoned (all bits set: NaN for floats, -1 for integers), and when a program carries a memory plan
its temporaries
really live at their byte offsets in one poisoned workspace, so that a wrong plan gives wrong numbers. With `double=True` every float
buffer of the program is held and computed in float64 (a higher-precision reference); the plan is then ignored, since sizes differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from precast.lowering.analysis.symbol_bindings import Binding, FromInteger, FromSizes, FromTensor, bindings
from precast.lowering.build.float_values import is_real
from precast.lowering.ir.nodes import (
    CHECK,
    ITEM,
    LAUNCH,
    LET,
    POSITION,
    RANGE,
    Attention,
    Buffer,
    Conv,
    Extern,
    Gemm,
    Index,
    Kernel,
    Program,
    Step,
    View,
)
from precast.lowering.ir.scalars import NAMED, DType
from precast.lowering.ir.sizes import range_message
from precast.lowering.ir.torch_dtypes import TORCH_DTYPES
from precast.lowering.verify.evaluate import Points, Stored, evaluate_index, evaluate_kernel, int_of, real_of

Launch = Callable[[str, tuple[Any, ...], dict[str, Any]], None]
"""A substitute for users' Triton kernels: (kernel, (what is launched, its grids), arguments by name, of which it writes some)."""


def run(program: Program, inputs: Sequence[torch.Tensor | int], *, double: bool = False, launch: Launch | None = None) -> list[Any]:
    """The program's outputs for `inputs` (tensors, and ints for symbolic integers, in calling order). `launch`: runs Triton kernels.

    Outputs are tensors (views of inputs' own memory where the program says so), ints or None. Mutated inputs are written in place.
    Raises `IndexError`, or what the gather names, for a position out of range, as the compiled program does, and `ValueError` when an
    access leaves its buffer.
    """
    return _Machine(program, inputs, double, launch).run()


class _Machine:
    """One execution: the memory of each buffer as a flat tensor, and the value of each size symbol."""

    def __init__(self, program: Program, inputs: Sequence[torch.Tensor | int], double: bool, launch: Launch | None = None) -> None:
        if len(inputs) != len(program.inputs):
            raise ValueError(f"{program.name}: {len(program.inputs)} inputs are expected, {len(inputs)} were given")
        self.program = program
        self.double = double
        self.run_kernel = launch
        self.buffers = {b.name: b for b in program.buffers}
        self.sizes: dict[sympy.Symbol, int] = {}
        self.memory: dict[str, torch.Tensor] = {}
        self.written: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._bind(inputs)
        self.slots = {} if double else {s.buffer: (int_of(s.offset, self.sizes), int_of(s.nbytes, self.sizes)) for s in program.workspace}
        self.workspace = torch.full((max(int_of(program.workspace_bytes, self.sizes), 0),), 255, dtype=torch.uint8)
        for constant in program.constants:
            self._fresh(constant.buffer)
            exact = torch.frombuffer(bytearray(constant.data), dtype=self._stored(constant.buffer))
            self.memory[constant.buffer].copy_(exact)

    def _bind(self, inputs: Sequence[torch.Tensor | int]) -> None:
        tensors: list[tuple[Buffer, torch.Tensor]] = []
        for name, value in zip(self.program.inputs, inputs, strict=True):
            if isinstance(name, str) and isinstance(value, torch.Tensor):
                tensors.append((self.buffers[name], value))
            elif isinstance(name, str) or isinstance(value, torch.Tensor):
                raise ValueError(f"input {name} must be {'a tensor' if isinstance(name, str) else 'a number'}, not {value!r}")
        for binding in bindings(self.program):
            self.sizes[binding.symbol] = self._bound(binding, inputs)
        for buffer, tensor in tensors:
            shape = tuple(int_of(s, self.sizes) for s in buffer.size)
            if shape != tuple(tensor.shape):
                raise ValueError(f"input {buffer.name} has shape {tuple(tensor.shape)}, the program expects {shape}")
            flat = tensor.detach().as_strided((self._span(buffer),), (1,), tensor.storage_offset())
            if self.double and buffer.dtype.is_float:
                self.written[buffer.name] = (flat, flat.to(torch.float64))
                flat = self.written[buffer.name][1]
            self.memory[buffer.name] = flat

    def _bound(self, binding: Binding, inputs: Sequence[Any]) -> int:
        match binding:
            case FromInteger(position=position):
                return inputs[position] if is_real(binding.symbol) else int(inputs[position])
            case FromTensor(position=position, what=what, dim=dim):
                value = inputs[position].shape[dim] if what == "size" else inputs[position].stride(dim)
                return (int(value) - binding.offset) // binding.factor
            case FromSizes(value=value):
                return int_of(value, self.sizes)

    def _span(self, buffer: Buffer) -> int:
        """Elements from the first to the last one that the strided buffer touches."""
        sizes = [int_of(s, self.sizes) for s in buffer.size]
        if any(s == 0 for s in sizes):
            return 0
        return 1 + sum((n - 1) * int_of(s, self.sizes) for n, s in zip(sizes, buffer.stride, strict=True))

    def run(self) -> list[Any]:
        for step in (*self.program.prepare, *self.program.steps):
            self._step(step)
        outputs = [self._output(o.view, o.scalar) for o in self.program.outputs]
        for name, (original, wide) in self.written.items():
            if any(name == target for step in self.program.steps for target in _mutated(step)):
                original.copy_(wide)
        return outputs

    def _output(self, view: View | None, scalar: Any) -> Any:
        if view is not None:
            return self.view(view)
        return None if scalar is None else int_of(scalar, self.sizes)

    def _dtype(self, dtype: DType, torch_name: str = "") -> torch.dtype:
        if dtype in NAMED:
            found = getattr(torch, torch_name)
            assert isinstance(found, torch.dtype)
            return found
        return torch.float64 if self.double and dtype.is_float else TORCH_DTYPES[dtype]

    def _stored(self, name: str) -> torch.dtype:
        buffer = self.buffers[name]
        return self._dtype(buffer.dtype, buffer.torch_dtype) if buffer.dtype in NAMED else TORCH_DTYPES[buffer.dtype]

    def _fresh(self, name: str) -> torch.Tensor:
        """The buffer's memory, allocated and poisoned at its first write."""
        if name not in self.memory:
            buffer = self.buffers[name]
            dtype = self._dtype(buffer.dtype, buffer.torch_dtype)
            nbytes = self._span(buffer) * dtype.itemsize
            if name in self.slots:
                offset, room = self.slots[name]
                if nbytes > room:
                    raise ValueError(f"buffer {name} needs {nbytes} bytes, its slot in the workspace has {room}")
                raw = self.workspace[offset : offset + nbytes]
                raw.fill_(255)
            else:
                raw = torch.full((nbytes,), 255, dtype=torch.uint8)
            self.memory[name] = raw.view(dtype) if nbytes else torch.empty(0, dtype=dtype)
        return self.memory[name]

    def view(self, view: View) -> torch.Tensor:
        flat = self._fresh(view.buffer) if any(n == 0 for n in view.size) else self.memory[view.buffer]  # nobody writes an empty buffer
        if view.dtype is not None and view.dtype is not self.buffers[view.buffer].dtype:
            flat = flat.view(self._dtype(view.dtype))
        size = [int_of(s, self.sizes) for s in view.size]
        return flat.as_strided(size, [int_of(s, self.sizes) for s in view.stride], flat.storage_offset() + int_of(view.offset, self.sizes))

    def _step(self, step: Step) -> None:
        match step:
            case Kernel():
                self._kernel(step)
            case Extern():
                self._extern(step)
            case Gemm(a=a, b=b):
                self._library(step, self.view(a).to(self._wide(a)) @ self.view(b).to(self._wide(b)))
            case Conv():
                x, w = (self.view(v).to(self._wide(v)) for v in (step.x, step.weight))
                padding = step.padding
                if step.padding_behind is not None:
                    sides = zip(reversed(step.padding), reversed(step.padding_behind), strict=True)
                    x, padding = torch.nn.functional.pad(x, [n for pair in sides for n in pair]), (0,) * len(padding)
                result = torch.convolution(
                    x, w, None, step.stride, padding, step.dilation, step.transposed, step.output_padding, step.groups
                )
                self._library(step, result)
            case Attention():
                self._attention(step)

    def _wide(self, view: View) -> torch.dtype:
        return self._dtype((view.dtype or self.buffers[view.buffer].dtype).compute)

    def _kernel(self, kernel: Kernel) -> None:
        # All values first, then all stores: the kernel's stores do not see one another, and a slot reused in place is poisoned after it
        # was read.
        stored: list[Stored] = evaluate_kernel(kernel, self._elements, self.sizes, self._dtype)
        for store, points in zip(kernel.stores, stored, strict=True):
            _write(self._fresh(store.buffer), store.mode, points)

    def _elements(self, name: str) -> torch.Tensor:
        """What a kernel reads: of floats of eight bits, the bytes."""
        flat = self.memory[name]
        return flat.view(torch.uint8) if self.buffers[name].dtype is DType.FLOAT8 else flat

    def _write_view(self, name: str, result: torch.Tensor) -> None:
        buffer = self.buffers[name]
        value = result.detach().clone()  # the result may alias memory that the slot poisons
        self._fresh(name)
        self.view(View(name, buffer.size, buffer.stride)).copy_(value)

    def _library(self, step: Gemm | Conv, result: torch.Tensor) -> None:
        if step.bias is not None:
            bias = self.view(step.bias).to(result.dtype)
            result = result + (bias if isinstance(step, Gemm) else bias.view(-1, *[1] * (result.dim() - 2)))
        residual = None if step.residual is None else self.view(step.residual).to(result.dtype)
        if residual is not None and step.residual_order == "before":
            result = result + residual
        result = ACTIVATIONS[step.activation](result, step.activation_args)
        if residual is not None and step.residual_order == "after":
            result = result + residual
        self._write_view(step.out, result)

    def _attention(self, step: Attention) -> None:
        q, k, v = (self.view(x).to(self._wide(x)) for x in (step.q, step.k, step.v))
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        scores = q @ k.transpose(-1, -2) * step.scale
        if step.mask is not None:
            scores = scores + self.view(step.mask).to(scores.dtype)
        if step.causal:
            keep = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~keep, float("-inf"))
        self._write_view(step.out, torch.softmax(scores, -1) @ v)

    def _extern(self, step: Extern) -> None:
        if step.op == CHECK:
            condition, message = step.args
            if not evaluate_index(condition, self.sizes):
                raise RuntimeError(message)
            return
        if step.op == RANGE:
            value, (low, high) = self.sizes[step.args[0]], step.args[1:]
            if low is not None and value < low or high is not None and value > high:
                raise RuntimeError(range_message(value, low, high))
            return
        if step.op == POSITION:
            index, size, dim = (int_of(a, self.sizes) for a in step.args)
            if not -size <= index < size:
                raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {size}")
            return
        if step.op == LET:
            self.sizes[step.binds[0].symbol] = int_of(step.args[0], self.sizes)
            return
        if step.op == ITEM:
            (bind,) = step.binds
            self.sizes[bind.symbol] = self.view(step.args[0]).item()  # type: ignore[assignment]
            return
        if step.op.startswith(LAUNCH):
            self._launch(step)
            return
        name, _, overload = step.op.removeprefix("aten::").partition(".")
        namespace = step.op.split("::")[0] if "::" in step.op else "aten"
        packet = getattr(getattr(torch.ops, namespace), name.split("::")[-1])
        args = [self._argument(a) for a in step.args]
        kwargs = {key: self._argument(a) for key, a in step.kwargs}
        result = getattr(packet, overload or "default")(*args, **kwargs)
        results = result if isinstance(result, tuple | list) else (result,)
        for bind in step.binds:
            self.sizes[bind.symbol] = (results[bind.out].shape[bind.dim] - bind.offset) // bind.factor
        for out, value in zip(step.outs, results, strict=False):
            if out:  # "": the op gives None here
                self._write_view(out, value)

    def _launch(self, step: Extern) -> None:
        if self.run_kernel is None or self.double:
            raise ValueError(f"{step.op} needs a function `launch` that stands for the kernel, and the types that it was made for")
        for name in step.mutates:
            self._fresh(name)
        where = tuple(self._argument(a) for a in step.args)
        self.run_kernel(step.op.removeprefix(LAUNCH), where, {name: self._argument(a) for name, a in step.kwargs})

    def _argument(self, arg: Any) -> Any:
        match arg:
            case View():
                value = self.view(arg)
                buffer = self.buffers[arg.buffer]
                # an extern sees the types that its schema's dtype arguments were made for
                return value.to(TORCH_DTYPES[buffer.dtype]) if self.double and buffer.dtype.is_float else value
            case Index(expr=expr):
                return self._argument(expr)
            case sympy.Basic():
                return real_of(arg, self.sizes) if is_real(arg) else int_of(arg, self.sizes)
            case ("dtype" | "memory_format" | "layout", str(name)):
                return getattr(torch, name)
            case ("device", str(name)):
                return torch.device(name)
            case tuple() | list():
                return [self._argument(a) for a in arg]
            case _:
                return arg


def _mutated(step: Step) -> tuple[str, ...]:
    match step:
        case Kernel(stores=stores):
            return tuple(s.buffer for s in stores)
        case Extern(mutates=mutates):
            return mutates
        case _:
            return ()


def _write(flat: torch.Tensor, mode: str, points: Points) -> None:
    """Combines the points' values into the buffer's memory."""
    index, value = points
    if index.numel() and not (0 <= int(index.min()) and int(index.max()) < flat.numel()):
        raise ValueError(f"a store leaves its buffer: indices {int(index.min())}..{int(index.max())} of {flat.numel()} elements")
    value = value.to(flat.dtype)
    match mode:
        case "set":
            flat[index] = value
        case "add":
            flat.index_put_((index,), value, accumulate=True)
        case _:
            flat.scatter_reduce_(0, index, value, {"mul": "prod", "min": "amin", "max": "amax"}[mode])


def _leaky(x: torch.Tensor, args: tuple[float, ...]) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(x, args[0])


ACTIVATIONS: dict[str, Any] = {
    "none": lambda x, _: x,
    "relu": lambda x, _: torch.relu(x),
    "gelu": lambda x, _: torch.nn.functional.gelu(x),
    "gelu_tanh": lambda x, _: torch.nn.functional.gelu(x, approximate="tanh"),
    "sigmoid": lambda x, _: torch.sigmoid(x),
    "tanh": lambda x, _: torch.tanh(x),
    "silu": lambda x, _: torch.nn.functional.silu(x),
    "hardswish": lambda x, _: torch.nn.functional.hardswish(x),
    "hardtanh": lambda x, args: torch.nn.functional.hardtanh(x, *args),
    "leaky_relu": _leaky,
}
