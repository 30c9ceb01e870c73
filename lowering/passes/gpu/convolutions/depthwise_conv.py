"""Depthwise convolutions as loops: each element is a sum over the few taps of its own channel's window.

They have no sums over channels that tensor cores could take. cuDNN's kernels want channels-last images, and are the fastest between others
that want them, too; a kernel of ours reads images in planes as they are, and has whatever follows in it.
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
from precast.lowering.passes.layout.channels_last import is_image
from precast.lowering.passes.layout.planes import between_planes

MOST_TAPS = 12
"""Taps of a window, one load each. On an H200 a tap of an element takes 0.28 ps in planes; cuDNN, whose images are channels-last, takes
0.16, and 1.95 for each element that is brought into that layout and back.
"""


def depthwise_convolutions(program: Program) -> Program:
    """The program with depthwise convolutions of few taps as kernels, their epilogues included: those between planes, and those of rows and
    volumes.
    """
    buffers = {b.name: b for b in program.buffers}
    planes = between_planes(program)

    def ours(step: Conv) -> bool:
        return is_depthwise(step) and (step.out in planes or not is_image(step))

    steps = tuple(_kernel(s, buffers) if isinstance(s, Conv) and ours(s) else s for s in program.steps)
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
