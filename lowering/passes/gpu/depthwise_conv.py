"""Depthwise convolutions as loops: each element is a sum over the few taps of its own channel's window.

They have no sums over channels that tensor cores could take, and cost what reading and writing the images costs. A kernel of ours reads
and writes them in any layout, and has whatever follows in it; cuDNN's fused operators are far slower with a group for each channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Buffer, Conv, Index, Kernel, Load, Program, Store, Value
from precast.lowering.ir.scalars import Op
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.passes.fusion.library_loops import Buffers, finish

MOST_TAPS = 25
"""Taps of a window that a kernel has written out, one load each."""


def depthwise_convolutions(program: Program) -> Program:
    """The program with each depthwise convolution of few taps as a kernel, its epilogue included."""
    buffers = {b.name: b for b in program.buffers}
    steps = tuple(_kernel(s, buffers) if isinstance(s, Conv) and is_depthwise(s) else s for s in program.steps)
    return replace(program, steps=steps)


def is_depthwise(step: Conv) -> bool:
    """Whether each channel of the result is made of one channel of the image, by a window of few taps."""
    channels, taps = step.x.size[1], step.weight.size[2:]
    alone = step.groups == channels == step.weight.size[0] and step.weight.size[1] == 1 and channels != 1
    return alone and not step.transposed and all(isinstance(n, int) for n in taps) and prod(map(int, taps)) <= MOST_TAPS


def _kernel(step: Conv, buffers: Buffers) -> Kernel:
    out = buffers[step.out]
    symbols = ix.symbols(len(out.size))
    axes = tuple(shared_axis(s, n) for s, n in zip(symbols, out.size, strict=True))
    total: Value | None = None
    for tap in product(*(range(int(n)) for n in step.weight.size[2:])):
        term = _term(step, out, symbols, tap)
        total = term if total is None else Alu(Op.ADD, (total, term), term.dtype)
    assert total is not None
    if step.bias is not None:
        bias = Load(step.bias.buffer, ix.affine(step.bias.offset, ((step.bias.stride[0], symbols[1]),)), out.dtype)
        total = Alu(Op.ADD, (total, bias), total.dtype)
    index = ix.affine(0, tuple(zip(out.stride, symbols, strict=True)))
    return Kernel(f"depthwise_{step.out}", axes, (Store(step.out, index, finish(step, total, axes, buffers)),), step.origins)


def _term(step: Conv, out: Buffer, symbols: Sequence[sympy.Symbol], tap: tuple[int, ...]) -> Value:
    """What one tap of the window adds; nothing is read outside of the image."""
    places: list[sympy.Expr] = [s if n != 1 else sympy.S.Zero for s, n in zip(symbols, out.size, strict=True)]
    mask: Value | None = None
    for d, at in enumerate(tap):
        extent, reach = step.x.size[2 + d], at * step.dilation[d] - step.padding[d]
        place = places[2 + d] * step.stride[d] + reach
        if reach < 0:
            mask = tx.both(mask, v.ge(Index(place), Index(sympy.S.Zero)))
        last = (out.size[2 + d] - 1) * step.stride[d] + reach
        if not ix.is_nonnegative(ix.plain(ix.expand(extent - 1 - last))):
            mask = tx.both(mask, v.lt(Index(place), Index(sympy.sympify(extent))))
        places[2 + d] = place
    taps = (symbols[1], sympy.S.Zero, *map(sympy.Integer, tap))
    x = Load(step.x.buffer, _at(step.x.offset, step.x.stride, places), out.dtype, (), mask)
    weight = Load(step.weight.buffer, _at(step.weight.offset, step.weight.stride, taps), out.dtype)
    return Alu(Op.MUL, (x, weight), out.dtype.compute)


def _at(offset: object, stride: Sequence[object], place: Sequence[sympy.Expr]) -> sympy.Expr:
    found: sympy.Expr = ix.expand(ix.affine(offset, tuple(zip(stride, place, strict=True))))
    return found
