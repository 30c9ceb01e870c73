"""Epilogue fusion: the bias, activation or residual that follows a matrix product or convolution becomes part of the library call.

Only where the library computes exactly the same function. A product may have a bias and an activation, or a bias and a residual; a
convolution also a residual followed by relu: those are the combinations that the libraries have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from precast.lowering.analysis.buffers import without_unused_buffers
from precast.lowering.analysis.effects import reads, store_roots, writes
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Buffer,
    Conv,
    Gemm,
    Kernel,
    Load,
    Program,
    Size,
    Step,
    Store,
    Unary,
    Value,
    View,
    operands,
    walk,
)
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.substitution import coordinates, shared_axis
from precast.lowering.ir.sympy_calls import same
from precast.lowering.passes.fusion.activations import match_activation, relu

Library = Gemm | Conv


@dataclass(frozen=True)
class Epilogue:
    bias: View | None
    activation: tuple[Unary, tuple[float, ...]]
    residual: View | None


Supported = Callable[[Library, Epilogue], bool]
"""Whether the libraries of a target have an epilogue on top of what the step does already."""


def attach_epilogues(program: Program, supported: Supported | None = None) -> Program:
    """Each library step takes over the one pointwise kernel that alone uses its result, when the library can do the same.

    `supported` tells what the target's libraries can do; default: those of the CPU.
    """
    supported = supported or cpu_supported
    users, writers, outputs, inputs = _usage(program)
    by_name = {b.name: b for b in program.buffers}
    steps: list[Step | None] = list(program.steps)
    for position, step in enumerate(program.steps):
        current: Library | None = step if isinstance(step, Gemm | Conv) else None
        at = position
        while current is not None:
            taken = _take(current, steps, users, writers, outputs, inputs, by_name, at, supported)
            if taken is None:
                break
            current, kernel_at = taken
            steps[at] = None
            steps[kernel_at], at = current, kernel_at
    return without_unused_buffers(replace(program, steps=tuple(s for s in steps if s is not None), buffers=tuple(by_name.values())))


def _usage(program: Program) -> tuple[dict[str, list[int]], dict[str, list[int]], set[str], set[str]]:
    users: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    for position, step in enumerate(program.steps):
        for name in reads(step):
            users.setdefault(name, []).append(position)
        for name in writes(step):
            writers.setdefault(name, []).append(position)
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    inputs = {i for i in program.inputs if isinstance(i, str)} | {c.buffer for c in program.constants} | set(program.persistent)
    return users, writers, outputs, inputs


def _take(
    step: Library,
    steps: list[Step | None],
    users: dict[str, list[int]],
    writers: dict[str, list[int]],
    outputs: set[str],
    inputs: set[str],
    by_name: dict[str, Buffer],
    at: int,
    supported: Supported,
) -> tuple[Library, int] | None:
    """The step with the kernel's work in it, and the kernel's position."""
    if step.out in outputs or len(users.get(step.out, ())) != 1 or (isinstance(step, Gemm) and len(step.a.size) != 2):
        return None
    position = users[step.out][0]
    kernel = steps[position]
    if not isinstance(kernel, Kernel) or (_bare_in_libraries(step) and _feeds_kernels(kernel, steps, users)):
        return None
    whole = _whole_kernel(step, kernel, writers, inputs, by_name, supported)
    if whole is not None:
        return whole, position
    relu = Epilogue(None, ("relu", ()), None)
    early = _early_relu(step, kernel) if supported(step, relu) and not _bare_in_libraries(step) else None
    if early is None:
        return None
    steps[position] = early
    return replace(step, activation="relu"), at


def _bare_in_libraries(step: Library) -> bool:
    """Whether no library has an epilogue for the step: a kernel of its own would pass over the result."""
    return isinstance(step, Conv) and (step.transposed or len(step.x.size) not in (4, 5))


def _feeds_kernels(kernel: Kernel, steps: list[Step | None], users: dict[str, list[int]]) -> bool:
    """Whether other kernels read what the kernel makes: they can take it over, and the result is passed over once less."""
    return any(isinstance(steps[user], Kernel) for store in kernel.stores for user in users.get(store.buffer, ()))


def _whole_kernel(
    step: Library,
    kernel: Kernel,
    writers: dict[str, list[int]],
    inputs: set[str],
    by_name: dict[str, Buffer],
    supported: Supported,
) -> Library | None:
    """The step that does all that the kernel did."""
    if len(kernel.stores) != 1:
        return None
    if any(len(writers.get(name, ())) > (name not in inputs) for name in reads(step)):
        return None  # an operand is overwritten somewhere: the step stays where it is
    store, result = kernel.stores[0], by_name[step.out]
    target = by_name[store.buffer]
    if len(writers[store.buffer]) > 1 or store.buffer in inputs or target.dtype is not result.dtype:
        return None
    found = _match(step, kernel, store, result, by_name)
    if found is None or not supported(step, found):
        return None
    by_name[store.buffer] = replace(result, name=store.buffer)
    origins = tuple(dict.fromkeys((*step.origins, *kernel.origins)))
    name, arguments = found.activation
    return replace(
        step,
        out=store.buffer,
        bias=found.bias or step.bias,
        activation=name if name != "none" else step.activation,
        activation_args=arguments or step.activation_args,
        residual=found.residual or step.residual,
        origins=origins,
    )


def _early_relu(step: Library, kernel: Kernel) -> Kernel | None:
    """The kernel (a pooling, say) without the relu that it applies to everything it reads of the step's result.

    A masked load reads 0 where the mask is false, and relu keeps 0.
    """
    if step.activation != "none" or (step.residual is not None and isinstance(step, Gemm)):
        return None
    users: dict[Value, list[Value]] = {}
    for value in walk(*(r for s in kernel.stores for r in store_roots(s))):
        for operand in operands(value):
            if isinstance(operand, Load) and operand.buffer == step.out:
                users.setdefault(operand, []).append(value)
    roots = {r for s in kernel.stores for r in store_roots(s)}
    if not users or any(load in roots or any(u is not relu(load) for u in found) for load, found in users.items()):
        return None
    plain = {relu(load): load for load in users}
    return map_kernel(kernel, lambda v: plain.get(v, v) if isinstance(v, Alu) else v)


def _match(step: Library, kernel: Kernel, store: Store, result: Buffer, by_name: dict[str, Buffer]) -> Epilogue | None:
    roots = list(walk(*store_roots(store)))
    own = [v for v in roots if isinstance(v, Load) and v.buffer == step.out]
    if store.mode != "set" or store.gathers or store.mask is not None or store.axes is not None or len(own) != 1:
        return None
    load = own[0]
    if load.index != store.index or load.gathers or load.mask is not None or not _covers(kernel, result):
        return None
    parser = _Parser(step, kernel, load, result, by_name)
    return parser.parse(store.value)


def _covers(kernel: Kernel, buffer: Buffer) -> bool:
    return same(ix.numel(a.extent for a in kernel.axes), ix.numel(buffer.size))


def cpu_supported(step: Library, found: Epilogue) -> bool:
    """Whether the library has this combination on top of what the step does already."""
    activation, residual = found.activation[0], found.residual
    if found.bias is not None and (step.bias is not None or step.residual is not None or step.activation != "none"):
        return False
    if residual is not None and (step.residual is not None or step.activation != "none"):
        return False
    if activation == "none":  # nothing at all: a copy, which remains where a scale was folded into a convolution's weight
        return found.bias is not None or residual is not None or isinstance(step, Conv)
    if step.activation != "none":
        return False
    if residual is None and step.residual is None:
        return True
    return isinstance(step, Conv) and activation == "relu"


class _Parser:
    """Matches the kernel's value from the outside in: activation, then residual and bias, down to the result of the library call."""

    def __init__(self, step: Library, kernel: Kernel, load: Load, result: Buffer, by_name: dict[str, Buffer]) -> None:
        self.step, self.load, self.result, self.by_name = step, load, result, by_name
        self.extents: ix.Extents = tuple((a.symbol, a.extent) for a in kernel.axes)

    def parse(self, value: Value) -> Epilogue | None:
        activation: tuple[Unary, tuple[float, ...]] = ("none", ())
        found = match_activation(value, self.load)
        if found is not None:
            activation, value = (found[0], found[1]), found[2]
        bias: View | None = None
        residual: View | None = None
        while value is not self.load:
            if not (isinstance(value, Alu) and value.op is Op.ADD):
                return None
            inner, other = value.args if self._holds(value.args[0]) else (value.args[1], value.args[0])
            if not isinstance(other, Load) or self._holds(other) or other.gathers or other.mask is not None:
                return None
            if residual is None and self._is_residual(other):
                residual = View(other.buffer, self.result.size, self.result.stride)
            elif bias is None and self._is_bias(other):
                bias = View(other.buffer, (self._channels(),), (1,))
            else:
                return None
            value = inner
        return Epilogue(bias, activation, residual)

    def _holds(self, value: Value) -> bool:
        return any(v is self.load for v in walk(value))

    def _channels(self) -> Size:
        return self.result.size[-1 if isinstance(self.step, Gemm) else 1]

    def _is_residual(self, other: Load) -> bool:
        return other.index == self.load.index and self.by_name[other.buffer].dtype is self.result.dtype

    def _is_bias(self, other: Load) -> bool:
        dims = ix.symbols(len(self.result.size))
        axes = tuple(shared_axis(s, n) for s, n in zip(dims, self.result.size, strict=True))
        whole = ix.affine(0, tuple(zip(self.result.stride, dims, strict=True)))
        where = coordinates(whole, axes, self.load.index, self.extents)
        if where is None or self.by_name[other.buffer].dtype is not self.result.dtype:
            return False
        channel = dict(where)[dims[-1 if isinstance(self.step, Gemm) else 1]]
        return bool(other.index == channel)
