"""The decompositions that capture hands to AOTAutograd: torch's own, for whatever has no rule here.

Ops with a rule stay whole, so that softmax, normalisation or gelu arrive as what they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

import precast.lowering.ops  # noqa: F401  (fills the table)
from precast.lowering.build.loss_rules import of_losses
from precast.lowering.build.registry import LOWERINGS
from precast.lowering.build.sampling_rules import replaced
from precast.lowering.build.type_checks import strict
from precast.lowering.build.value_checks import tested

EXTRA = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_no_update",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "nll_loss_forward",
    "nll_loss2d_forward",
    "binary_cross_entropy",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "grid_sampler_2d",
    "pixel_shuffle",
    "pixel_unshuffle",
    "addmv",
    "mse_loss",
    "smooth_l1_loss",
    "huber_loss",
    "soft_margin_loss",
)
"""Not in torch's core set, but made of ops that have rules."""

WHOLE = (torch.ops.aten.bernoulli.default, torch.ops.aten.bernoulli.p)
"""Torch's rules for these draw other numbers than the operators do."""


def _decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    table = dict(core_aten_decompositions())
    packets = [getattr(torch.ops.aten, n) for n in EXTRA if hasattr(torch.ops.aten, n)]
    table |= get_decompositions(packets)
    table |= replaced(table)
    table |= of_losses(table)
    table |= tested(table)
    return {op: strict(op, rule) for op, rule in table.items() if op not in LOWERINGS and op not in WHOLE}


DECOMPOSITIONS: dict[torch._ops.OperatorBase, Callable[..., Any]] = _decompositions()
