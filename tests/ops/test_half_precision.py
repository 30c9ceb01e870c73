"""Half precision: sums of many elements are rounded once, and operators that torch describes wrongly do not spoil memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops.compiled import compiled

ROWS = 3
MANY = 4096
"""Ones added one by one: a bfloat16 that rounds each time stays at 256, a float16 at 2048."""

Sum = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SUMS: dict[str, Sum] = {
    "index_put": lambda x, where, ones: x.index_put((where,), ones, accumulate=True),
    "index_add": lambda x, where, ones: x.index_add(0, where, ones),
    "scatter_add": lambda x, where, ones: x.scatter_add(0, where, ones),
    "scatter_reduce": lambda x, where, ones: x.scatter_reduce(0, where, ones, "sum"),
    "scatter_mean": lambda x, where, ones: x.scatter_reduce(0, where, ones, "mean", include_self=False),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SUMS)
def test_sums_by_position_are_rounded_once(name: str, dtype: torch.dtype, tmp_path: Any) -> None:
    def call(x: torch.Tensor, where: torch.Tensor, ones: torch.Tensor) -> torch.Tensor:
        return SUMS[name](x, where, ones)

    x, where, ones = torch.zeros(ROWS, dtype=dtype), torch.arange(MANY) % ROWS, torch.ones(MANY, dtype=dtype)
    got = compiled(call, str(tmp_path), f"half.{name}")(x, where, ones)
    want = SUMS[name](x.double(), where, ones.double()).to(dtype)
    assert got.dtype is dtype and torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_running_statistics_of_an_update(dtype: torch.dtype, tmp_path: Any) -> None:
    """torch's description of this operator says float32 for statistics that have the input's dtype."""

    def call(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> Any:
        ones = torch.ones(5, dtype=x.dtype)
        return torch.ops.aten._batch_norm_with_update(x, ones, ones, mean, variance, 0.25, 1e-5)[0]

    x = torch.randn(8, 5, 7, dtype=dtype)
    mean, variance = torch.randn(5).to(dtype), torch.rand(5).to(dtype)
    wide = (x.double(), mean.double(), variance.double())
    call(*wide)
    result = compiled(call, str(tmp_path), "half.batch_norm")(x, mean, variance)
    assert result.dtype is dtype
    for got, want in ((mean, wide[1]), (variance, wide[2])):
        torch.testing.assert_close(got.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-6)


def test_running_statistics_are_rounded_once(tmp_path: Any) -> None:
    model = torch.nn.BatchNorm1d(64).bfloat16().train()
    model.running_mean.normal_()
    wide = torch.nn.BatchNorm1d(64).double().train()
    wide.load_state_dict(model.state_dict())
    x = torch.randn(16, 64, 9).bfloat16()

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    with torch.no_grad():
        wide(x.double())
        compiled(call, str(tmp_path), "half.batch_norm_module")(x)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(model, name).double(), getattr(wide, name), rtol=2**-8, atol=0)


HALVES = [torch.bfloat16, torch.float16]
EXACT: dict[str, Callable[[torch.Tensor, torch.dtype], torch.Tensor]] = {
    "there and back": lambda x, half: x.to(half).float(),
    "what is lost": lambda x, half: (x - x.to(half).float()) * 1e4,
    "the sum of two": lambda x, half: (x.to(half).float() + (x - x.to(half).float()).to(half).float()) * 3,
    "from integers": lambda x, half: (x * 1e4).int().to(half).int(),
    "a constant": lambda x, half: torch.full((4,), 2049.5).to(half).float() + torch.full((4,), 7e4).to(half).float() + x[0, :4] * 0,
    "copied": lambda x, half: torch.empty_like(x, dtype=half).copy_(x * 1.1).float() * 3,
    "to the other": lambda x, half: x.to(torch.bfloat16).to(torch.float16).float() - x.to(half).float(),
    "behind a reduction": lambda x, half: (x / x.sum(-1, keepdim=True).to(half).float()).to(half).float() - x,
}
"""Conversions that the code asks for are made, whatever is fused around them."""

PLACES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "argmax": lambda x, y: (x + y).argmax(-1),
    "argmin": lambda x, y: (x * y).argmin(),
    "max": lambda x, y: (x + y).max(-1).indices,
    "count_nonzero": lambda x, y: torch.count_nonzero((x * 1e-4) * (y * 1e-4), -1),
    "any": lambda x, y: ((x * 1e-4) * (y * 1e-4)).any(-1),
    "comparison": lambda x, y: (x + y) >= (x + y).amax(-1, keepdim=True),
}
"""What jumps looks at values as eager's memory holds them: ties, and numbers that are too small for the type."""


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", EXACT)
def test_conversions_round(name: str, half: torch.dtype, tmp_path: Any) -> None:
    x = torch.rand(64, 64) + 0.5
    got = compiled(lambda x: EXACT[name](x, half), str(tmp_path), f"half.{name} {half}")(x)
    want = EXACT[name](x, half)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, rtol=1e-5 if "reduction" in name else 0, atol=1e-2 if "reduction" in name else 0)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("name", PLACES)
def test_what_jumps_sees_rounded_values(name: str, half: torch.dtype, tmp_path: Any) -> None:
    x, y = (torch.randn(64, 64).to(half) for _ in range(2))
    assert torch.equal(compiled(PLACES[name], str(tmp_path), f"half.{name} {half}")(x, y), PLACES[name](x, y))
