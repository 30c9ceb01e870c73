"""Of equal extremes the first one's position is given, along each axis and of all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import precast
from precast.lowering.ir.nodes import Reduce
from precast.lowering.ir.scalars import DType, ReduceOp
from tests.codegen.programs import axis, buffer, build, load, map_kernel


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


@pytest.mark.parametrize("op", [ReduceOp.ARGMAX, ReduceOp.ARGMIN], ids=lambda op: op.value)
def test_a_position_inside_of_a_sum(op: ReduceOp) -> None:
    """There it is found in one pass: the first point counts also where it equals what the search starts from."""
    i, j, r = axis("i", 4), axis("j", 5), axis("r", 100)
    b, o = buffer("x", (4, 5, 100)), buffer("o", (4,), DType.I64)
    kernel = map_kernel("k", o, (i,), Reduce(ReduceOp.SUM, Reduce(op, load(b, (i, j, r)), (r,), DType.I64), (j,), DType.I64))
    end = -float("inf") if op is ReduceOp.ARGMAX else float("inf")
    x = torch.randint(0, 2, (4, 5, 100)).float()
    x[0] = end
    x[1, :, :50] = end
    (got,) = build([b], [o], [kernel])(x)
    find = numpy.argmax if op is ReduceOp.ARGMAX else numpy.argmin
    numpy.testing.assert_array_equal(got.numpy(), find(x.numpy(), axis=-1).sum(-1))
