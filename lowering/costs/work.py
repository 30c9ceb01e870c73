"""The least that a step has to do: the bytes that it must read and write, and the operations that it must compute (the two axes of the
roofline model, Williams, Waterman and Patterson, 2009). What a kernel reads or computes twice is counted once.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import sympy
import torch
from torch.utils.flop_counter import flop_registry

from precast.lowering.analysis.dependencies import nbytes_hint
from precast.lowering.analysis.effects import index_expr, store_roots, views, writes
from precast.lowering.analysis.matmul_patterns import product_of
from precast.lowering.costs.records import Work
from precast.lowering.ir.nodes import (
    Alu,
    Attention,
    Axis,
    Buffer,
    Conv,
    Extern,
    Gemm,
    Index,
    Kernel,
    Load,
    Reduce,
    Scan,
    Step,
    Value,
    View,
    walk,
)
from precast.lowering.ir.nodes import operands as operands_of
from precast.lowering.ir.scalars import TRANSCENDENTAL, DType, Op
from precast.lowering.ir.sizes import hint

_WEIGHTS = {Op.DIV: 3, Op.SQRT: 3, Op.RSQRT: 3, Op.FLOORDIV: 3, Op.TRUNCDIV: 3, Op.MOD: 3, Op.REM: 3}
_TRANSCENDENTAL = 8


def work_of(step: Step, buffers: Mapping[str, Buffer]) -> Work:
    """Of one step of a program with these buffers."""
    match step:
        case Kernel():
            return _of_kernel(step, buffers)
        case Gemm(a=a, b=b):
            *batch, rows, depth = map(hint, a.size)
            operations = 2 * prod(batch) * rows * depth * hint(b.size[-1])
            return _of_call(step, buffers, operations, a)
        case Conv(x=x, weight=weight):
            outside = x.size if step.transposed else buffers[step.out].size
            operations = 2 * prod(map(hint, (outside[0], *outside[2:]))) * prod(map(hint, weight.size))
            return _of_call(step, buffers, operations, x)
        case Attention(q=q, k=k, v=v):
            scores = prod(map(hint, q.size[:-1])) * hint(k.size[-2])
            operations = 2 * scores * (hint(q.size[-1]) + hint(v.size[-1])) // (2 if step.causal else 1)
            return _of_call(step, buffers, operations, q)
        case Extern():
            return _of_call(step, buffers, _by_formula(step, buffers), next(iter(views(step)), None))


FUSED_CONVOLUTIONS = ("aten::cudnn_convolution_relu", "aten::cudnn_convolution_add_relu")
"""Operators of which torch has no formula, and whose first operands are the input and the weight."""


def _of_call(step: Step, buffers: Mapping[str, Buffer], operations: int | None, first: View | None) -> Work:
    read: dict[str, int] = {}
    for view in views(step):
        read[view.buffer] = min(read.get(view.buffer, 0) + _bytes(view, buffers), max(nbytes_hint(buffers[view.buffer]), 1))
    dtype = DType.F32 if first is None else first.dtype or buffers[first.buffer].dtype
    written = {name: nbytes_hint(buffers[name]) for name in writes(step)}
    return Work(read, written, operations, dtype.value, products=operations is not None)


def _bytes(view: View, buffers: Mapping[str, Buffer]) -> int:
    """Of the view's distinct elements: a dimension of stride 0 is one."""
    dtype = view.dtype or buffers[view.buffer].dtype
    return dtype.itemsize * prod(hint(n) for n, s in zip(view.size, view.stride, strict=True) if s != 0)


def _by_formula(step: Extern, buffers: Mapping[str, Buffer]) -> int | None:
    """Torch's own count of an operator's operations; None where it has none. Whatever the formula raises means the same."""
    if step.op in FUSED_CONVOLUTIONS and isinstance(step.args[1], View):
        batch, _, *space = map(hint, buffers[step.outs[0]].size)
        return 2 * batch * prod(space) * prod(map(hint, step.args[1].size))
    namespace, _, rest = step.op.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), rest.partition(".")[0], None) if namespace == "aten" else None
    if packet not in flop_registry:
        return None
    outs = tuple(tuple(map(hint, buffers[name].size)) for name in step.outs if name)
    args, kwargs = _shapes(step.args), {name: _shapes(value) for name, value in step.kwargs}
    try:
        return int(flop_registry[packet](*args, **kwargs, out_val=outs[0] if len(outs) == 1 else outs))
    except Exception:  # noqa: BLE001 - a formula for other arguments; the step then has bytes only
        return None


def _shapes(arg: Any) -> Any:
    """An argument with shapes in the place of tensors."""
    match arg:
        case View(size=size):
            return tuple(map(hint, size))
        case Index(expr=expr):
            return hint(expr)
        case tuple() | list():
            return type(arg)(_shapes(a) for a in arg)
        case _:
            return arg


# --- kernels -----------------------------------------------------------------------------------------------------------------------


def _of_kernel(kernel: Kernel, buffers: Mapping[str, Buffer]) -> Work:
    extents = _extents(kernel)
    depends = _dependences(kernel, extents)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    operations = 0

    def points(symbols: frozenset[sympy.Symbol]) -> int:
        return prod(extents[s] for s in symbols)

    def touch(counts: dict[str, int], name: str, elements: int) -> None:
        buffer = buffers[name]
        counts[name] = min(counts.get(name, 0) + elements * buffer.dtype.itemsize, max(nbytes_hint(buffer), 1))

    arithmetic = DType.F32
    for value in walk(*(root for store in kernel.stores for root in store_roots(store))):
        match value:
            case Load(buffer=name):
                touch(read, name, points(depends[value]))
            case Alu(op=op, dtype=dtype):
                operations += points(depends[value]) * (_TRANSCENDENTAL if op in TRANSCENDENTAL else _WEIGHTS.get(op, 1))
                arithmetic = DType.F64 if dtype is DType.F64 else arithmetic
            case Reduce(value=inner):
                operations += points(depends[inner])
            case Scan(value=inner, axis=axis):
                operations += points(depends[inner] | {axis.symbol})
    for store in kernel.stores:
        axes = kernel.axes if store.axes is None else store.axes
        count = prod(hint(a.extent) for a in axes)
        touch(written, store.buffer, count)
        if store.mode != "set":
            touch(read, store.buffer, count)
    product = product_of(kernel.axes, kernel.stores)
    if product is not None:
        return Work(read, written, operations, product.sums[0].half.value, products=True)
    return Work(read, written, operations, arithmetic.value)


def _extents(kernel: Kernel) -> dict[sympy.Symbol, int]:
    """Of the kernel's axes and of its reductions'."""
    axes: list[Axis] = list(kernel.axes)
    for value in walk(*(root for store in kernel.stores for root in store_roots(store))):
        if isinstance(value, Reduce):
            axes += value.axes
    return {a.symbol: hint(a.extent) for a in axes}


def _dependences(kernel: Kernel, extents: Mapping[sympy.Symbol, int]) -> dict[Value, frozenset[sympy.Symbol]]:
    """The axes at whose points each value differs."""
    found: dict[Value, frozenset[sympy.Symbol]] = {}
    for value in walk(*(root for store in kernel.stores for root in store_roots(store))):
        expr = index_expr(value)
        symbols = frozenset() if expr is None else frozenset(s for s in expr.free_symbols if s in extents)
        symbols = symbols.union(*(found[o] for o in operands_of(value)))
        if isinstance(value, Reduce):
            symbols -= {a.symbol for a in value.axes}
        elif isinstance(value, Scan):
            symbols |= {value.axis.symbol}
        found[value] = symbols
    return found


__all__ = ["Work", "work_of"]
