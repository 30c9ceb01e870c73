"""Positions that graphs compute in floats: an index expression where they are as plain as one, the same positions in any case."""

from __future__ import annotations

from pathlib import Path

import pytest
import sympy
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.lowering.analysis.computed_positions import computed_position
from precast.lowering.ir import index as ix
from precast.lowering.ir.nodes import Alu, Cast, Const, Index, Value, axis_symbol
from precast.lowering.ir.scalars import DType, Op

I = axis_symbol("i")  # noqa: E741


def scaled(factor: float, offset: float = 0.0) -> Value:
    """`int(float32(i) * factor + offset)`, as resampling is decomposed."""
    at = Alu(Op.MUL, (Cast(Index(I), DType.F32), Const(factor, DType.F32)), DType.F32)
    return Cast(Alu(Op.ADD, (at, Const(offset, DType.F32)), DType.F32), DType.I64)


@pytest.mark.parametrize(
    ("value", "extent", "wanted"),
    [
        (scaled(0.5), 128, ix.FloorDiv(I, sympy.Integer(2))),
        (scaled(0.25), 64, ix.FloorDiv(I, sympy.Integer(4))),
        (scaled(2.0), 50, 2 * I),
        (scaled(1.0, 3.0), 50, I + 3),
        (scaled(1 / 3), 99, ix.FloorDiv(I, sympy.Integer(3))),
        (scaled(0.5, 0.5), 128, None),
        (scaled(0.75), 64, None),
        (scaled(0.0), 64, None),
        (scaled(-1.0, 63.0), 64, None),
        (scaled(float("nan")), 64, None),
        (scaled(1e30), 64, None),
        (scaled(0.5), 1, None),
        (scaled(0.5), 1 << 20, None),
    ],
)
def test_what_a_position_is(value: Value, extent: int, wanted: sympy.Expr | None) -> None:
    assert computed_position(value, ((I, extent),)) == wanted


def test_single_precision_counts() -> None:
    """A third in single precision is more than a third: the product with 3 * k is not less than k, but with others may be."""
    for factor, extent in ((1 / 3, 4000), (0.1, 4000), (1 / 7, 4000)):
        found = computed_position(scaled(factor), ((I, extent),))
        exact = (torch.arange(extent, dtype=torch.float32) * factor).long()
        if found is not None:
            assert exact.tolist() == [int(found.subs(I, i)) for i in range(extent)]


@pytest.mark.parametrize("size", [(2, 3, 5, 9), (1, 2, 16, 16), (3, 1, 1, 7)])
@pytest.mark.parametrize("factor", [2, 3, 4, 1.5, 0.5])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_resampling(size: tuple[int, ...], factor: float, mode: str, store: Path) -> None:
    if factor == 0.5 and 1 in size[2:]:
        pytest.skip("nothing would be left")

    def program(x: Tensor, y: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=factor, mode=mode) * 0.5 + y

    x = torch.randn(size)
    y = torch.randn(F.interpolate(x, scale_factor=factor, mode=mode).shape)
    torch.testing.assert_close(precast.compile(program, store=store, dynamic=False)(x, y), program(x, y))
