"""Where the result of attention lies on a GPU. Capture promises its strides before a kernel is chosen; were they not those that the kernel
gives, each call would copy the result.

cuDNN's kernel lays its result out as the queries lie. The others give [B, H, S, D] that lies as [B, S, H, D], whatever they read.

This file imports nothing of the package: capture, lowering and codegen do not know each other.
"""

from __future__ import annotations

import torch

CUDNN_DEPTH = 128
"""Elements of a head that cuDNN's kernel takes at most, in whole vectors of `VECTOR`."""
VECTOR = 8


def like(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> torch.Tensor:
    """An empty result in the layout of the kernel that is taken where nothing was measured."""
    if query.shape[-1] == value.shape[-1] and by_cudnn(query, key, mask, causal):
        return torch.empty_like(query)
    batch, heads, rows, _ = query.shape
    return query.new_empty((batch, rows, heads, value.shape[-1])).transpose(1, 2)


def by_cudnn(query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, causal: bool) -> bool:
    """Whether cuDNN's kernel computes it."""
    depth = query.shape[-1]
    known = all(isinstance(n, int) for t in (query, key) for n in t.shape) and key.shape[-2] != 1
    if query.dtype not in (torch.float16, torch.bfloat16) or not known or query.stride(-1) != 1 or depth % VECTOR or depth > CUDNN_DEPTH:
        return False
    if mask is not None:
        return not causal and (mask.dtype is torch.bool or (mask.dtype is query.dtype and mask.stride(-1) == 1))
    return not causal or query.shape[-2] == key.shape[-2]
