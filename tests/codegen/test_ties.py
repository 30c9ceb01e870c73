"""Of equal extremes the first one's position is given, along each axis and of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import precast


def extremes(x: Any) -> Any:
    return x.argmin(0), x.argmin(1), x.argmax(0), x.argmax(1), x.argmin(), x.argmax()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int32], ids=str)
def test_ties(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = [torch.randint(low, low + 2, (13, 37)).to(dtype) for low in (0, -5, 7)]
    ends = (-float("inf"), float("inf")) if dtype.is_floating_point else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    tensors += [torch.full((13, 37), end, dtype=dtype) for end in ends]
    compiled = precast.compile(extremes, store=tmp_path, fullgraph=True)
    for x in tensors:
        array = x.numpy()
        with torch.no_grad():
            found = compiled(x)
        assert len(found) == 6
        wanted = [function(array, axis=axis) for function in (numpy.argmin, numpy.argmax) for axis in (0, 1)]
        wanted += [numpy.argmin(array), numpy.argmax(array)]
        for got, right in zip(found, wanted, strict=True):
            numpy.testing.assert_array_equal(got.numpy(), right)
