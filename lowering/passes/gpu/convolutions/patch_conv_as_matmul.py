"""Patch convolutions (kernel equals stride, no padding) as matrix products: one kernel gathers each patch into a row.

cuDNN takes ten times as long for the first layer of a vision transformer. The rows of the product are the result with channels innermost,
so its buffer gets that layout: by the layout pass where images follow, by this one where the pixels become a sequence, an index
expression that the layout pass cannot trace to rows and columns.
"""

from __future__ import annotations

from dataclasses import replace

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Conv, Gemm, Kernel, Load, Program, Size, Step, Store, View
from precast.lowering.ir.substitution import shared_axis
from precast.lowering.passes.gpu.library_epilogues import GEMM_ACTIVATIONS
from precast.lowering.passes.layout.relayout import Move, moved

MIN_PATCH = 2
"""Elements of a patch's side: a 1x1 convolution is a product as it is."""


def patches_as_products(program: Program) -> Program:
    """The program with each such convolution as a gather and a product."""
    for step in program.steps:
        if isinstance(step, Conv) and is_patch(step) and not _rows_of(program.buffer(step.out)):
            program = _restrided(program, step.out)
    buffers = {b.name: b for b in program.buffers}
    steps: list[Step] = []
    for step in program.steps:
        if isinstance(step, Conv) and is_patch(step) and _rows_of(buffers[step.out]):
            steps += _as_product(step, buffers)
        else:
            steps.append(step)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers.values()))


def is_patch(conv: Conv) -> bool:
    """Whether patches do not overlap, and the weight is contiguous as a matrix product reads it."""
    kernel = conv.weight.size[2:]
    plain = not conv.transposed and conv.groups == 1 and conv.activation in ("none", *GEMM_ACTIVATIONS) and conv.residual is None
    whole = conv.weight.stride == ix.contiguous_strides(conv.weight.size)
    single = all(n == 1 for n in conv.dilation) and all(n == 0 for n in conv.padding)
    return plain and whole and single and tuple(conv.stride) == kernel and all(isinstance(n, int) and n >= MIN_PATCH for n in kernel)


def _rows_of(result: Buffer) -> bool:
    order = (0, *range(2, len(result.size)), 1)
    wanted = ix.contiguous_strides(tuple(result.size[d] for d in order))
    return all(result.size[d] == 1 or result.stride[d] == n for d, n in zip(order, wanted, strict=True))


def _restrided(program: Program, name: str) -> Program:
    """The program with the channels of buffer `name` innermost; unchanged where an access to the buffer does not allow it."""
    buffer = program.buffer(name)
    if buffer.stride != ix.contiguous_strides(buffer.size):
        return program
    count, channels, places = buffer.size[0], buffer.size[1], ix.numel(buffer.size[2:])
    rest = replace(program, steps=tuple(s for s in program.steps if not (isinstance(s, Conv) and s.out == name)))
    new = moved(rest, Move(name, (count, channels, places), (ix.numel((channels, places)), 1, channels), name))
    if new is None:
        return program
    conv = next(s for s in program.steps if isinstance(s, Conv) and s.out == name)
    order = (0, *range(2, len(buffer.size)), 1)
    inner = dict(zip(order, ix.contiguous_strides(tuple(buffer.size[d] for d in order)), strict=True))
    laid = replace(buffer, stride=tuple(inner[d] for d in range(len(buffer.size))))
    at = program.steps.index(conv)
    steps = (*new.steps[:at], conv, *new.steps[at:])
    return replace(new, steps=steps, buffers=tuple(laid if b.name == name else b for b in program.buffers))


def _as_product(conv: Conv, buffers: dict[str, Buffer]) -> list[Step]:
    result = buffers[conv.out]
    channels, kernel, image = conv.weight.size[1], conv.weight.size[2:], result.size[2:]
    rows, depth, width = ix.numel((result.size[0], *image)), ix.numel((channels, *kernel)), conv.weight.size[0]
    patches = Buffer(f"{conv.out}_patches", result.dtype, (rows, depth), (depth, 1))
    buffers |= {patches.name: patches, conv.out: replace(result, size=(rows, width), stride=(width, 1))}
    weight = View(conv.weight.buffer, (depth, width), (1, depth), conv.weight.offset, conv.weight.dtype)
    a = View(patches.name, patches.size, patches.stride)
    product = Gemm(a, weight, conv.bias, conv.out, conv.activation, conv.activation_args, origins=conv.origins)
    return [_gather(conv, patches, image), product]


def _gather(conv: Conv, patches: Buffer, image: tuple[Size, ...]) -> Kernel:
    """`patches[(n, place), (channel, offset)]`, a row for each place of the result."""
    kernel = conv.weight.size[2:]
    size = (conv.x.size[0], *image, conv.weight.size[1], *kernel)
    symbols = ix.symbols(len(size))
    n, places, channel, offsets = symbols[0], symbols[1 : 1 + len(image)], symbols[1 + len(image)], symbols[2 + len(image) :]
    strides = conv.x.stride
    terms = [(strides[0], n), (strides[1], channel)]
    for stride, step, place, offset in zip(strides[2:], kernel, places, offsets, strict=True):
        terms += [(stride * step, place), (stride, offset)]
    value = Load(conv.x.buffer, ix.affine(conv.x.offset, tuple(terms)), patches.dtype)
    target = ix.affine(0, tuple(zip(ix.contiguous_strides(size), symbols, strict=True)))
    axes = tuple(shared_axis(s, n) for s, n in zip(symbols, size, strict=True))
    return Kernel(f"{conv.out}_gather", axes, (Store(patches.name, target, value),), conv.origins)
