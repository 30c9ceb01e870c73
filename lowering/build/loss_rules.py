"""Rules of our own for `nll_loss` and its gradient, in torch's operators.

The forward pass is torch's rule but for one thing: a target that is no class is an IndexError, as in eager, where `gather` has a
RuntimeError.

The gradient of `nll_loss` is zero but for one element a row. Torch's rule writes it by a scatter into zeros, which lies in memory
before anything is computed from it; as a choice by position it is computed wherever it is read, and its sum over the classes is known.
The forward pass has checked the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NONE, MEAN, SUM = range(3)
"""`reduction` of ATen's losses (at::Reduction)."""


def taken_by_class(x: Tensor, dim: int, target: Tensor) -> Tensor:
    """`gather`, with an IndexError for a target that is no class: `sparse_grad`, which says nothing of the result, stands for that."""
    return torch.gather(x, dim, target.unsqueeze(dim), sparse_grad=True).squeeze(dim)


def nll_loss_forward(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int) -> tuple[Tensor, Tensor]:
    """`aten::nll_loss_forward` (x: [classes] or [rows, classes]) and `aten::nll_loss2d_forward` (x: [rows, classes, height, width])."""
    dim = 0 if x.dim() < 2 else 1
    if weight is not None:
        weight = weight.view([-1 if d == dim else 1 for d in range(x.dim())]) if x.dim() > 1 else weight
        x = x * weight
    taken = target != ignored
    place = torch.where(taken, target, 0)
    result = torch.where(taken, -taken_by_class(x, dim, place), 0)
    if reduction == NONE and x.dim() > 1:
        return result, x.new_full((), 0.0)
    if weight is not None:
        total_weight = torch.where(taken, taken_by_class(weight.expand(x.shape), dim, place), 0).sum()
    else:
        total_weight = taken.sum().to(x)
    if reduction == SUM:
        result = result.sum()
    elif reduction == MEAN:
        result = result.sum() / total_weight
    return result, total_weight


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
    for name in ("nll_loss", "nll_loss2d"):
        for way, rule in (("forward", nll_loss_forward), ("backward", nll_loss_backward)):
            op = getattr(torch.ops.aten, f"{name}_{way}").default
            if op in table:
                found[op] = rule
    return found


__all__ = ["of_losses"]
