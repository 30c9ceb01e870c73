"""Which convolutions are depthwise, as code for CPUs computes them: channels-last, and with any numbers of zeros around an image."""

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


def depthwise_fits(step: Conv, buffers: Mapping[str, Buffer]) -> bool:
    """Whether a depthwise convolution is channels-last as well."""
    out = buffers[step.out]
    if not is_depthwise(step, buffers) or step.x.stride[1] != 1:
        return False
    n, c, h, w = out.size
    inner = ix.contiguous_strides((n, h, w, c))
    last = out.stride == (inner[0], inner[3], inner[1], inner[2])
    return last and (step.residual is None or step.residual.stride == out.stride and step.residual.size == out.size)
