"""Checks of values that eager's kernels make before they compute, for the decompositions that take their place."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Rule = Callable[..., Any]


def _between_0_and_1(values: Tensor, what: str) -> None:
    """NaN lies nowhere."""
    inside = torch.logical_and(values >= 0, values <= 1).all()
    aten._assert_async.msg(inside, f"all elements of {what} should be between 0 and 1")


def _binary_cross_entropy(rule: Rule) -> Rule:
    @wraps(rule)
    def checked(values: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
        _between_0_and_1(values, "input")
        _between_0_and_1(target, "target")
        return rule(values, target, *args, **kwargs)

    return checked


CHECKS: dict[torch._ops.OperatorBase, Callable[[Rule], Rule]] = {aten.binary_cross_entropy.default: _binary_cross_entropy}


def tested(table: dict[torch._ops.OperatorBase, Rule]) -> dict[torch._ops.OperatorBase, Rule]:
    """The operators of a table that check values, with their rules behind the checks."""
    return {op: CHECKS[op](rule) for op, rule in table.items() if op in CHECKS}
