"""Which convolutions are of a kind that code for CPUs computes by itself, with any numbers of zeros around an image: depthwise ones over
channels-last images, and ones that read images of few channels in any layout, such as a network's first.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Buffer, Conv
from precast.lowering.ir.scalars import DType
from precast.lowering.ir.sizes import known

LEAST_CHANNELS = 16
"""Channels of the narrowest image: a vector of any target. Where the last vector would not be full it begins earlier."""
MOST_TAPS = 49
"""Taps of the largest window: the code for a row of taps is unrolled."""
MOST_PRODUCTS = 512
"""Products of a sum over an image of few channels: the rows that it reads, and a panel of the weight, stay in the first-level cache."""
FEW_CHANNELS = 4
"""Channels up to which an image is read in any layout: more would make better use of vectors along them."""
ACTIVATIONS = frozenset({"none", "relu", "gelu", "silu", "sigmoid", "gelu_tanh", "hardtanh"})
"""What may follow a sum in registers."""


def is_depthwise(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a convolution has as many groups as channels, one filter each, and all of it is f32."""
    out = buffers[step.out]
    operands = [v for v in (step.x, step.weight, step.bias, step.residual) if v is not None]
    if {out.dtype, *(v.dtype or buffers[v.buffer].dtype for v in operands)} != {DType.F32} or len(step.x.size) != 4 or step.transposed:
        return False
    if not known(step.x.size[1], *step.weight.size, *step.weight.stride) or step.activation not in ACTIVATIONS:
        return False
    channels, _, *window = (int(n) for n in step.weight.size)
    alone = step.groups == channels == int(step.x.size[1])
    return alone and channels >= LEAST_CHANNELS and prod(window) <= MOST_TAPS and (step.bias is None or step.bias.stride == (1,))


def has_few_channels(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a convolution reads an image of few channels, makes at least a vector of them, and all of it is f32."""
    out = buffers[step.out]
    operands = [v for v in (step.x, step.weight, step.bias) if v is not None]
    if {out.dtype, *(v.dtype or buffers[v.buffer].dtype for v in operands)} != {DType.F32} or len(step.x.size) != 4 or step.transposed:
        return False
    if not known(step.x.size[1], *step.weight.size, *step.weight.stride) or step.activation not in ACTIVATIONS or step.residual is not None:
        return False
    filters, channels, *window = (int(n) for n in step.weight.size)
    few = step.groups == 1 and channels <= FEW_CHANNELS and filters >= LEAST_CHANNELS
    return few and channels * prod(window) <= MOST_PRODUCTS and (step.bias is None or step.bias.stride == (1,))


def few_channels_fits(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a convolution over an image of few channels has a channels-last result as well."""
    return has_few_channels(step, buffers) and _is_last(buffers[step.out])


def takes_any_padding(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a convolution may have unequal numbers of zeros at both sides of an image."""
    return is_depthwise(step, buffers) or has_few_channels(step, buffers)


def _is_last(out: Buffer) -> bool:
    n, c, h, w = out.size
    inner = ix.contiguous_strides((n, h, w, c))
    return out.stride == (inner[0], inner[3], inner[1], inner[2])


def depthwise_fits(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a depthwise convolution is channels-last as well."""
    out = buffers[step.out]
    if not is_depthwise(step, buffers) or step.x.stride[1] != 1:
        return False
    return _is_last(out) and (step.residual is None or step.residual.stride == out.stride and step.residual.size == out.size)
