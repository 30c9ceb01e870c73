"""Rules of our own for the gradients of losses, in torch's operators.

The gradient of `nll_loss` is zero but for one element a row. Torch's rule writes it by a scatter into zeros, which lies in memory
before anything is computed from it; as a choice by position it is computed wherever it is read, and its sum over the classes is known.
The forward pass has checked the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MEAN = 1
"""`reduction` of ATen's losses (at::Reduction)."""


def nll_loss_backward(
    gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int, total_weight: Tensor
) -> Tensor:
    """`aten::nll_loss_backward` (x: [classes] or [rows, classes]) and `aten::nll_loss2d_backward` (x: [rows, classes, height, width])."""
    dim = 0 if x.dim() < 2 else 1
    if reduction == MEAN:
        gradient = gradient / total_weight
    if x.dim() == 1 and target.dim() > 0:
        target = target[0]
    target = target.unsqueeze(dim)
    taken = target != ignored
    place = torch.where(taken, target, 0)
    if x.dim() > gradient.dim() > 0:
        gradient = gradient.unsqueeze(dim)
    if weight is not None:
        gradient = gradient * weight[place]
    value = torch.where(taken, -gradient, 0)
    classes = torch.arange(x.shape[dim], device=x.device).reshape([-1 if d == dim else 1 for d in range(x.dim())])
    return torch.where(classes == place, value, 0)


def of_losses(table: dict[torch._ops.OperatorBase, Callable[..., Any]]) -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """The operators of a table that have a rule here, with it."""
    found: dict[torch._ops.OperatorBase, Callable[..., Any]] = {}
    for op in (torch.ops.aten.nll_loss_backward.default, torch.ops.aten.nll_loss2d_backward.default):
        if op in table:
            found[op] = nll_loss_backward
    return found


__all__ = ["of_losses"]
