"""Space-to-depth for the first convolution of an image network, whose three channels and stride of two suit no tensor core.

Blocks of `stride x stride` pixels become channels (space to depth), each pixel padded to `CHANNELS`: a 7x7 convolution of stride 2 over 3
channels is then exactly a 4x4 convolution of stride 1 over 16, without padding. Image and weight are rearranged by one kernel each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from precast.lowering.build import lazy_tensor as tx
from precast.lowering.build import scalar_exprs as v
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Conv, Index, Kernel, Load, Program, Size, Step, Store, Value, View
from precast.lowering.ir.substitution import shared_axis

CHANNELS = 4
"""Channels that a pixel is padded to: with a stride of 2 a block has 16, two vectors of eight."""


def space_to_depth(program: Program) -> Program:
    """The program with its strided convolutions over few channels rearranged."""
    buffers = {b.name: b for b in program.buffers}
    steps: list[Step] = []
    for step in program.steps:
        steps += _rearranged(step, buffers) if isinstance(step, Conv) and _is_stem(step, buffers[step.out]) else [step]
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values()))


def _is_stem(conv: Conv, result: Buffer) -> bool:
    if conv.transposed or len(conv.x.size) != 4 or conv.groups != 1 or any(n != 1 for n in conv.dilation):
        return False
    sizes = (*conv.weight.size, *result.size, *conv.x.size)
    if not all(isinstance(n, int) for n in sizes) or int(conv.weight.size[1]) > CHANNELS:
        return False
    overlapping = all(int(k) > s for k, s in zip(conv.weight.size[2:], conv.stride, strict=True))
    return overlapping and conv.stride[0] == conv.stride[1] == 2


def _rearranged(conv: Conv, buffers: dict[str, Buffer]) -> list[Step]:
    result = buffers[conv.out]
    step = conv.stride[0]
    lead = tuple(-(-p // step) for p in conv.padding)  # blocks in front of the image
    shift = tuple(n * step - p for n, p in zip(lead, conv.padding, strict=True))
    taps = tuple(-(-(int(k) + s) // step) for k, s in zip(conv.weight.size[2:], shift, strict=True))
    depth = step * step * CHANNELS
    image = tuple(int(n) + t - 1 for n, t in zip(result.size[2:], taps, strict=True))
    blocks = _last(f"{conv.out}_blocks", (conv.x.size[0], depth, *image), result)
    weight = _last(f"{conv.out}_block_weight", (conv.weight.size[0], depth, *taps), result)
    buffers |= {blocks.name: blocks, weight.name: weight}
    kernels = [
        _blocks(conv.x, blocks, step, tuple(-n * step for n in lead), conv.origins),
        _blocks(conv.weight, weight, step, tuple(-n for n in shift), conv.origins),
    ]
    views = [View(b.name, b.size, b.stride) for b in (blocks, weight)]
    return [*kernels, replace(conv, x=views[0], weight=views[1], stride=(1, 1), padding=(0, 0))]


def _last(name: str, size: tuple[Size, ...], like: Buffer) -> Buffer:
    """A channels-last buffer."""
    n, c, h, w = size
    inner = ix.contiguous_strides((n, h, w, c))
    return Buffer(name, like.dtype, size, (inner[0], inner[3], inner[1], inner[2]))


def _blocks(source: View, target: Buffer, step: int, start: Sequence[int], origins: tuple[str, ...]) -> Kernel:
    """`target[n, (a, b, c), i, j] = source[n, c, start + step * i + a, … + b]`, 0 outside of the source."""
    count, _, height, width = target.size
    size = (count, height, width, step, step, CHANNELS)
    n, i, j, a, b, c = symbols = ix.symbols(6)
    rows, columns = step * i + a + start[0], step * j + b + start[1]
    mask: Value | None = None
    if source.size[1] != CHANNELS:
        mask = v.lt(Index(c), Index(sympy.sympify(source.size[1])))
    for place, extent in ((rows, source.size[2]), (columns, source.size[3])):
        mask = tx.both(mask, v.ge(Index(place), Index(sympy.S.Zero)))
        mask = tx.both(mask, v.lt(Index(place), Index(sympy.sympify(extent))))
    at = ix.affine(source.offset, tuple(zip(source.stride, (n, c, rows, columns), strict=True)))
    value = Load(source.buffer, ix.expand(at), target.dtype, (), mask)
    index = ix.affine(0, tuple(zip(ix.contiguous_strides(size), symbols, strict=True)))
    axes = tuple(shared_axis(s, extent) for s, extent in zip(symbols, size, strict=True))
    return Kernel(f"fill_{target.name}", axes, (Store(target.name, index, value),), origins)
