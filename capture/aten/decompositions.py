"""The default decomposition table: ATen's core decompositions, less the ops that precast keeps whole."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from precast.capture.adapters.operators import core_aten_decompositions

KEPT = (
    "native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training _softmax "
    "_log_softmax gelu silu elu leaky_relu hardtanh hardswish hardsigmoid softplus mish relu6 logsigmoid "
    "_scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention embedding convolution addmm baddbmm addbmm addmv "
    "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d upsample_nearest1d upsample_nearest2d upsample_nearest3d "
    "upsample_bilinear2d upsample_bicubic2d upsample_linear1d upsample_trilinear3d addcmul addcdiv lerp where cumsum cumprod var "
    "var_mean std std_mean linalg_vector_norm split split_with_sizes stack roll flip sort topk nll_loss_forward grid_sampler_2d "
    "index_add index_copy _cdist_forward triu tril eye masked_fill arange full_like native_dropout bernoulli rsub t select_scatter "
    "slice_scatter diagonal_scatter"
).split()


@functools.cache
def default_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table used where none is passed in."""
    table = dict(core_aten_decompositions().items())  # type: ignore[no-untyped-call]
    for name in KEPT:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            table.pop(getattr(packet, overload), None)
    return table
