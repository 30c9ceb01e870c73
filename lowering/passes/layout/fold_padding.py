"""Zeros around an image, made by a kernel of their own, as the padding of the convolutions that read it: the image is then neither copied
nor read twice, and what computes it may be the epilogue of a convolution before.

Unequal numbers of zeros at both sides, as strided convolutions of TensorFlow have them, are the padding of depthwise convolutions and of
those over few channels only, whose code for CPUs takes them where results are channels-last. Where such a convolution turns out to stay
contiguous, `pad_again` makes the zeros after all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

import sympy

from precast.lowering.analysis.depthwise import depthwise_fits, few_channels_fits, takes_any_padding
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.analysis.rewrite_values import map_kernel
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import (
    Alu,
    Buffer,
    Const,
    Conv,
    Index,
    Kernel,
    Load,
    Program,
    Reduce,
    Scan,
    Size,
    Step,
    Store,
    Value,
    View,
    walk,
)
from precast.lowering.ir.scalars import DType, Op
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.ir.sympy_calls import expand
from precast.lowering.passes.layout.channels_last import dimensions, extents_in
from precast.lowering.passes.simplify.algebra import position_of, simplify_kernel


@dataclass(frozen=True)
class Zeros:
    """How many rows and columns of zeros lie before and behind an image, and the kernel that makes the image alone."""

    before: tuple[int, int]
    behind: tuple[int, int]
    size: tuple[Size, ...]
    kernel: Kernel


def fold_padding(program: Program) -> Program:
    """The program without kernels that only surround images of convolutions with zeros."""
    buffers = {b.name: b for b in program.buffers}
    fixed = {i for i in program.inputs if isinstance(i, str)} | {o.view.buffer for o in program.outputs if o.view is not None}
    fixed |= {c.buffer for c in program.constants} | set(program.persistent)
    readers: dict[str, list[Step]] = {}
    writers: dict[str, int] = {}
    for step in program.steps:
        for name in dict.fromkeys(reads(step)):
            readers.setdefault(name, []).append(step)
        for name in writes(step):
            writers[name] = writers.get(name, 0) + 1
    found: dict[str, Zeros] = {}
    for step in program.steps:
        if not isinstance(step, Kernel) or len(step.stores) != 1:
            continue
        name = step.stores[0].buffer
        if name in fixed or writers[name] != 1 or len(buffers[name].size) != 4 or name not in readers:
            continue
        zeros = _zeros(step, buffers[name])
        if zeros is not None and all(_takes(s, name, zeros, buffers) for s in readers[name]):
            found[name] = zeros
    if not found:
        return program
    images = {n: replace(buffers[n], size=z.size, stride=ix.contiguous_strides(z.size)) for n, z in found.items()}
    steps = tuple(_without(s, found, images) for s in program.steps)
    return replace(program, steps=steps, buffers=tuple(images.get(b.name, b) for b in program.buffers))


def _zeros(kernel: Kernel, buffer: Buffer) -> Zeros | None:
    """The zeros around what a kernel stores; None where it does anything else."""
    (store,) = kernel.stores
    value = store.value
    if store.mode != "set" or store.mask is not None or store.gathers or store.axes is not None:
        return None
    if buffer.stride != ix.contiguous_strides(buffer.size) or not (isinstance(value, Alu) and value.op is Op.WHERE):
        return None
    condition, _, other = value.args
    if not (isinstance(other, Const) and other.value == 0) or any(isinstance(v, Reduce | Scan) for v in walk(value)):
        return None
    extents = extents_in(kernel)
    where = dimensions(buffer, store.index, None, extents)
    if where is None:
        return None
    dims = ix.symbols(4)
    own = {a.symbol: d for d in (2, 3) for a in kernel.axes if where[dims[d]] == a.symbol}
    low: dict[int, int] = {2: 0, 3: 0}
    end: dict[int, sympy.Expr] = {d: sympy.sympify(buffer.size[d]) for d in (2, 3)}
    stack = [condition]
    while stack:
        part = stack.pop()
        if isinstance(part, Alu) and part.op is Op.AND:
            stack.extend(part.args)
            continue
        bound = _bound(part)
        symbol = next((s for s in own if s in bound.free_symbols), None) if bound is not None else None
        if bound is None or symbol is None:
            return None
        rest = expand(bound - symbol)
        if rest.is_Integer and int(rest) <= 0:
            low[own[symbol]] = max(low[own[symbol]], -int(rest))
            continue
        rest = expand(bound + symbol + 1)
        if rest.free_symbols & {s for s, _ in extents} or end[own[symbol]] != buffer.size[own[symbol]]:
            return None
        end[own[symbol]] = rest
    behind = tuple(expand(buffer.size[d] - end[d]) for d in (2, 3))
    if any(not b.is_Integer or b < 0 for b in behind) or not (any(low.values()) or any(behind)):
        return None
    size = (*buffer.size[:2], *(ix.plain(expand(end[d] - low[d])) for d in (2, 3)))
    if any(isinstance(n, int) and n <= 0 for n in size):
        return None
    place = ix.affine(0, tuple(zip(ix.contiguous_strides(size), (where[d] for d in dims), strict=True)))
    return Zeros((low[2], low[3]), (int(behind[0]), int(behind[1])), size, _inner(kernel, own, low, size, place))


def _bound(part: Value) -> sympy.Expr | None:
    """An expression that is not negative exactly where a comparison of positions holds."""
    if not isinstance(part, Alu) or part.op not in (Op.LT, Op.LE):
        return None
    a, b = (position_of(v) for v in part.args)
    return None if a is None or b is None else expand(b - a - (1 if part.op is Op.LT else 0))


def _inner(kernel: Kernel, own: dict[sympy.Symbol, int], low: dict[int, int], size: tuple[Size, ...], place: sympy.Expr) -> Kernel:
    """The kernel over the image alone, each element of which it stores at `place`."""
    moved = tuple((s, s + low[d]) for s, d in own.items() if low[d])
    axes = tuple(shared_axis(a.symbol, size[own[a.symbol]]) if a.symbol in own else a for a in kernel.axes)
    extents = tuple((a.symbol, a.extent) for a in axes)

    def rule(value: Value) -> Value:
        if isinstance(value, Load):
            known = (*extents, *((g.symbol, g.size) for g in value.gathers))
            return Load(value.buffer, ix.substitute(value.index, moved, known), value.dtype, value.gathers, value.mask)
        if isinstance(value, Index):
            return Index(ix.substitute(sympy.sympify(value.expr), moved, extents), value.dtype)
        return value

    whole = map_kernel(replace(kernel, axes=axes), rule, lambda store: replace(store, index=place))
    (store,) = whole.stores
    assert isinstance(store.value, Alu)
    return simplify_kernel(replace(whole, stores=(replace(store, value=store.value.args[1]),)))


def _takes(step: Step, name: str, zeros: Zeros, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a step is a convolution that can have these zeros as its padding."""
    if not isinstance(step, Conv) or step.transposed:
        return False
    if name in [v.buffer for v in (step.weight, step.bias, step.residual) if v is not None]:
        return False
    whole = buffers[name]
    if step.x.size != whole.size or step.x.stride != whole.stride or step.x.offset != 0 or step.x.dtype is not None:
        return False
    return (zeros.before == zeros.behind and step.padding_behind is None) or takes_any_padding(step, buffers)


def _without(step: Step, found: Mapping[str, Zeros], images: Mapping[str, Buffer]) -> Step:
    if isinstance(step, Kernel) and step.stores[0].buffer in found:
        return found[step.stores[0].buffer].kernel
    if not isinstance(step, Conv) or step.x.buffer not in found:
        return step
    zeros, image = found[step.x.buffer], images[step.x.buffer]
    before = tuple(a + b for a, b in zip(step.padding, zeros.before, strict=True))
    behind = tuple(a + b for a, b in zip(step.padding_behind or step.padding, zeros.behind, strict=True))
    x = View(image.name, image.size, image.stride)
    return replace(step, x=x, padding=before, padding_behind=None if behind == before else behind)


def pad_again(program: Program) -> Program:
    """The program in which every convolution with unequal padding is one that takes it: others read an image with zeros around it."""
    buffers = {b.name: b for b in program.buffers}
    steps: list[Step] = []
    for step in program.steps:
        unequal = isinstance(step, Conv) and step.padding_behind is not None
        if isinstance(step, Conv) and unequal and not (depthwise_fits(step, buffers) or few_channels_fits(step, buffers)):
            step, kernel, image = _padded(step, buffers)
            buffers[image.name] = image
            steps.append(kernel)
        steps.append(step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values())) if len(buffers) != len(program.buffers) else program


def _padded(step: Conv, buffers: Mapping[str, Buffer]) -> tuple[Conv, Kernel, Buffer]:
    assert step.padding_behind is not None
    n, c, *image = step.x.size
    size = (n, c, *(ix.plain(s + a + b) for s, a, b in zip(image, step.padding, step.padding_behind, strict=True)))
    last = step.x.stride[1] == 1
    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    inner = dict(zip(order, ix.contiguous_strides(tuple(size[d] for d in order)), strict=True))
    name = next(m for m in (f"{step.x.buffer}_padded{i or ''}" for i in count()) if m not in buffers)
    target = replace(buffers[step.x.buffer], name=name, size=size, stride=tuple(inner[d] for d in range(4)))
    dims = ix.symbols(4)
    place = tuple(s if n != 1 else sympy.S.Zero for s, n in zip(dims, size, strict=True))
    shift = (0, 0, *step.padding)
    conditions = []
    for d in (2, 3):
        low, high = shift[d], step.x.size[d] + shift[d]
        conditions.append(Alu(Op.LE, (Index(sympy.Integer(low)), Index(place[d])), DType.BOOL))
        conditions.append(Alu(Op.LT, (Index(place[d]), Index(sympy.sympify(high))), DType.BOOL))
    mask: Value = conditions[0]
    for condition in conditions[1:]:
        mask = Alu(Op.AND, (mask, condition), DType.BOOL)
    at = ix.affine(step.x.offset, tuple((s, p - b) for s, p, b in zip(step.x.stride, place, shift, strict=True)))
    dtype = target.dtype
    value = Alu(Op.WHERE, (mask, Load(step.x.buffer, expand(at), dtype, (), mask), Const(0.0, dtype.compute)), dtype.compute)
    axes = tuple(shared_axis(dims[d], size[d]) for d in order)
    store = Store(name, ix.affine(0, tuple(zip(target.stride, place, strict=True))), value)
    kernel = simplify_kernel(Kernel(f"{name}_zeros", axes, (store,)))
    return replace(step, x=View(name, size, target.stride), padding=(0, 0), padding_behind=None), kernel, target
