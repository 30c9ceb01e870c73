"""Max-pooling that says where its maxima are in few bytes: two operators that stand in graphs between capture and lowering.

`max_pool_numbers` gives the maxima, and for each the number of its position within its window, counted as the window's dimensions are
nested; `max_pool_gradient` is the gradient of the pooled tensor, which has the given size and strides. Neither is ever called: every
graph that holds one is compiled, and its lowering has a rule for each.

This file imports nothing of the package: capture and lowering do not know each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

_library: Any = torch.library.Library("precast", "FRAGMENT")  # type: ignore[no-untyped-call]
_WINDOWS = "int[] kernel_size, int[] stride, int[] padding, int[] dilation"
_library.define(f"max_pool_numbers(Tensor self, {_WINDOWS}, bool ceil_mode) -> (Tensor, Tensor)")
_library.define(f"max_pool_gradient(Tensor gradient, Tensor numbers, int[] size, int[] strides, {_WINDOWS}) -> Tensor")
NUMBERS: torch._ops.OpOverload = torch.ops.precast.max_pool_numbers.default
GRADIENT: torch._ops.OpOverload = torch.ops.precast.max_pool_gradient.default
MOST_ASKED = 9
"""Windows that cover one position, at most, where the gradient asks each of them: of more, most of the answers are no."""


def number_type(kernel: Sequence[int]) -> torch.dtype:
    """The type that numbers the positions of such a window."""
    points = math.prod(kernel)
    return torch.uint8 if points <= 1 << 8 else torch.int16 if points <= 1 << 15 else torch.int32


@torch.library.register_fake("precast::max_pool_numbers", lib=_library)  # type: ignore[untyped-decorator]
def _numbers(
    x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil_mode: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    pool = torch.ops.aten.max_pool2d_with_indices if len(kernel) == 2 else torch.ops.aten.max_pool3d_with_indices
    values, indices = pool(x, kernel, stride, padding, dilation, ceil_mode)
    return values, torch.empty_like(indices, dtype=number_type(kernel))


@torch.library.register_fake("precast::max_pool_gradient", lib=_library)  # type: ignore[untyped-decorator]
def _gradient(
    gradient: torch.Tensor,
    numbers: torch.Tensor,
    size: list[int],
    strides: list[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> torch.Tensor:
    return gradient.new_empty_strided(size, strides)


__all__ = ["GRADIENT", "MOST_ASKED", "NUMBERS", "number_type"]
