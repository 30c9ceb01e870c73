"""Products with weights that are kept in a narrower type: cast where they lie, or read as they are for a few rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import precast
from precast.artifact_store import Store
from precast.lowering.ir.nodes import Gemm, Kernel, Reduce, walk
from tests.lowering.test_lowered_steps import agrees, kinds, t


def weights(n: int = 5, k: int = 8) -> torch.Tensor:
    return torch.randint(-127, 127, (n, k), dtype=torch.int8)


def cast(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w.t().to(x.dtype))


def scaled(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype) * scale, bias)


def test_a_cast_of_a_transposed_weight_stays_transposed() -> None:
    program = agrees(cast, t(9, 8), weights())
    assert kinds(program) == [Kernel, Gemm]
    product = program.steps[-1]
    assert isinstance(product, Gemm) and product.b.stride == (1, 8)


def test_what_lies_by_rows_stays_by_rows() -> None:
    product = agrees(lambda x, w: x @ (w * 2), t(9, 8), t(8, 5)).steps[-1]
    assert isinstance(product, Gemm) and product.b.stride == (5, 1)


def test_the_larger_operand_says_how_a_sum_lies() -> None:
    product = agrees(lambda x, w, v: x @ (w.t() + v), t(9, 8), t(5, 8), weights(8, 5)).steps[-1]
    assert isinstance(product, Gemm) and product.b.stride == (1, 8)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_few_rows_read_narrow_weights_as_they_are(rows: int) -> None:
    for fn, more in ((cast, ()), (scaled, (t(5, 1), t(5)))):
        program = agrees(fn, t(rows, 8), weights(), *more)
        assert Gemm not in kinds(program)
        assert any(isinstance(value, Reduce) for s in program.steps if isinstance(s, Kernel) for st in s.stores for value in walk(st.value))


def test_other_products_are_left_to_the_library() -> None:
    assert Gemm in kinds(agrees(cast, t(5, 8), weights()))  # rows enough
    assert Gemm in kinds(agrees(lambda x, w: x @ w.to(x.dtype), t(1, 5), weights()))  # does not lie along the sum
    assert Gemm in kinds(agrees(lambda x, w: x @ (w * 2).t(), t(1, 8), t(5, 8)))  # nothing is narrower
    assert Gemm in kinds(agrees(lambda x, w: x @ w.exp().t(), t(1, 8), t(5, 8).half().float()))
    assert Gemm in kinds(agrees(lambda x, w: F.linear(x, w), t(1, 8), t(5, 8)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 33])
@torch.no_grad()
def test_compiled(rows: int, dtype: torch.dtype, tmp_path: object) -> None:
    """Against float64, no further off than twice eager's own error and a rounding of the sum of magnitudes (bound: 96)."""
    x, w = torch.randn(rows, 96, dtype=dtype), weights(40, 96)
    scale, bias = torch.rand(40, 1).to(dtype) / 64, torch.randn(40, dtype=dtype)
    store = Store.open(str(tmp_path))
    for fn, args in ((cast, (x, w)), (scaled, (x, w, scale, bias))):
        exact = fn(*(a if a is w else a.double() for a in args))
        eager, got = fn(*args), precast.compile(fn, store=store, fullgraph=True, dynamic=False, options={"isolate_recompiles": True})(*args)
        assert got.dtype is dtype and got.stride() == eager.stride()
        magnitude = fn(*(a.abs() if a is w else a.double().abs() for a in args)).max()
        roundings = 8 if dtype is torch.float64 else 1  # of the judge's sum, too
        allowed = 2 * (eager.double() - exact).abs().max() + roundings * magnitude * torch.finfo(dtype).eps
        assert (got.double() - exact).abs().max() <= allowed
