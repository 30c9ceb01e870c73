"""Bessel functions as mpmath has them: beyond 5 torch's own are exact to six or seven digits only, in float64 too, and NaN at infinity."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import torch

Function = Callable[[torch.Tensor], torch.Tensor]


def _exact(function: Callable[[int, float], Any], order: int, both_sides: bool) -> Function:
    def one(x: float) -> float:
        if math.isnan(x) or (x < 0 and not both_sides):
            return math.nan
        if math.isinf(x):
            return 0.0
        return -math.inf if x == 0 and not both_sides else float(function(order, x))

    return lambda x: torch.tensor([one(v) for v in x.double().flatten().tolist()], dtype=torch.float64).reshape(x.shape)


J0, J1 = (_exact(mpmath.besselj, order, both_sides=True) for order in (0, 1))
Y0, Y1 = (_exact(mpmath.bessely, order, both_sides=False) for order in (0, 1))
