"""Values that eager refuses on a CPU: division of integers by 0, numbers that their memory does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import precast
from tests.ops.compiled import compiled

Fn = Callable[[Tensor, Tensor], Tensor]
DIVISIONS: dict[str, Fn] = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: (a % b).sum(-1),
    "fmod": lambda a, b: torch.fmod(a, b) + 1,
    "truncated": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "by a scalar tensor": lambda a, b: a // b.amin(),
    "in a reduction": lambda a, b: (a // b).amax(),
    "behind where": lambda a, b: torch.where(b == 0, 0, a // b),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("name", DIVISIONS)
def test_division_by_zero(name: str, dtype: torch.dtype, tmp_path: object) -> None:
    fn = DIVISIONS[name]
    call = compiled(fn, str(tmp_path), f"{name} {dtype}")
    a, b = torch.arange(300, dtype=dtype).reshape(3, 100), torch.arange(1, 301).remainder(50).to(dtype).reshape(3, 100)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fn(a, b)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        call(a, b)
    b[b == 0] = 7
    assert torch.equal(call(a, b), fn(a, b))


def test_division_by_the_number_zero() -> None:
    a = torch.arange(4)
    for fn in (lambda a: a // 0, lambda a: a % 0):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            precast.compile(fn)(a)
    assert torch.equal(precast.compile(lambda a: (a + 1.0) // 0)(a), (a + 1.0) // 0)


def test_what_is_not_divided_is_no_error() -> None:
    """Empty tensors, and the parts of a fused concatenation that are not the quotient."""
    empty = torch.empty(0, dtype=torch.int64)
    assert precast.compile(lambda a: a // torch.zeros((), dtype=torch.int64))(empty).shape == (0,)

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return torch.nn.functional.pad(torch.cat([a // b, a]), (2, 3)) + 1

    a, b = torch.arange(1, 9), torch.arange(2, 10)
    assert torch.equal(precast.compile(joined)(a, b), joined(a, b))
    for fn in (
        lambda a: torch.nn.functional.pad(a // torch.arange(1, 9), (2, 3)),
        lambda a: torch.cat([a, a % torch.arange(1, 9)]) + 1,
        lambda a: torch.cat([a // torch.arange(8, 0, -1), a]) + 1,
    ):
        assert torch.equal(precast.compile(fn, fullgraph=True)(a), fn(a))


UNFIT: dict[str, Fn] = {
    "fill_": lambda a, b: a.to(torch.uint8).fill_(300),
    "masked_fill": lambda a, b: a.half().masked_fill(b > 0, -1e9),
    "full": lambda a, b: torch.full((2,), 1e6, dtype=torch.half) + a,
    "an infinity": lambda a, b: torch.full_like(a, float("inf")),
    "a float below 0": lambda a, b: torch.full((3,), -5.0, dtype=torch.uint8),
    "index_fill": lambda a, b: a.to(torch.uint8).index_fill(0, a[:1], 300),
    "pad": lambda a, b: torch.nn.functional.pad(a.half(), (1, 1), value=-1e9),
    "clamp": lambda a, b: a.half().clamp(max=1e9),
    "scatter": lambda a, b: a.half().scatter(0, a[:1], 1e9),
    "a negative power": lambda a, b: a**-1,
}
FIT: dict[str, Fn] = {
    "fill_": lambda a, b: a.to(torch.uint8).fill_(-1),
    "masked_fill": lambda a, b: a.half().masked_fill(b > 0, -float("inf")),
    "full": lambda a, b: torch.full((2,), 6e4, dtype=torch.half) + a,
    "an infinity": lambda a, b: torch.full_like(a.float(), float("inf")),
    "a float below 0": lambda a, b: torch.full((3,), 5.0, dtype=torch.uint8),
    "index_fill": lambda a, b: a.to(torch.uint8).index_fill(0, a[:1], 200),
    "pad": lambda a, b: torch.nn.functional.pad(a.half(), (1, 1), value=-1e4),
    "clamp": lambda a, b: a.to(torch.int8).clamp(max=1),
    "scatter": lambda a, b: a.half().scatter(0, a[:1], 1e4),
    "a negative power": lambda a, b: (a.float() + 1) ** -1,
}


@pytest.mark.parametrize("name", UNFIT)
def test_numbers_that_do_not_fit(name: str) -> None:
    a, b = torch.arange(2), torch.ones(2)
    with pytest.raises(RuntimeError):
        UNFIT[name](a, b)
    with pytest.raises(RuntimeError):
        precast.compile(UNFIT[name])(a, b)
    assert torch.equal(precast.compile(FIT[name])(a, b), FIT[name](a, b))


def test_powers_that_change_from_call_to_call() -> None:
    call = precast.compile(lambda x, n: x**n, dynamic=True)
    x = torch.arange(1, 5)
    assert torch.equal(call(x, 2), x**2) and torch.equal(call(x, 3), x**3)
    with pytest.raises(RuntimeError, match="negative integer powers"):
        call(x, -1)


BOUNDS = ((-5, None), (None, -5), (300, None), (None, 300), (-300, 1), (-5, 300), (None, 2**40))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_bounds_beyond_the_type(dtype: torch.dtype) -> None:
    """Written in the program, and then varying: torch refuses them, wraps them, or goes by their value, each in some release."""
    a = torch.arange(2).to(dtype)

    def answer(program: Fn, *args: Any) -> Any:
        try:
            return program(*args)
        except RuntimeError:
            return "refused"

    def varying(a: torch.Tensor, low: int | None, high: int | None) -> torch.Tensor:
        return a.clamp(low, high)

    dynamic = precast.compile(varying)
    for low, high in BOUNDS:

        def written(a: torch.Tensor, low: int | None = low, high: int | None = high) -> torch.Tensor:
            return a.clamp(low, high)

        expected = answer(varying, a, low, high)
        for found in (answer(precast.compile(written), a), answer(dynamic, a, low, high)):
            assert type(found) is type(expected) and (isinstance(found, str) or torch.equal(found, expected)), (low, high)
