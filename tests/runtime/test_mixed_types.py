"""Products of several types, which eager refuses: the same error, at each call, and nothing that makes the program eager for good."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.api import site_of

DOUBLE = torch.float64
A, B, V = torch.randn(3, 8), torch.randn(8, 4), torch.randn(8)


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (torch.addmm, (torch.randn(4), A, B), (torch.randn(4), A.double(), B)),
        (torch.addmm, (torch.randn(4), A, B), (torch.randn(4, dtype=DOUBLE), A, B)),
        (torch.nn.functional.linear, (A, B.t(), torch.randn(4)), (A, B.t(), torch.randn(4, dtype=DOUBLE))),
        (torch.nn.functional.linear, (A[None], B.t(), torch.randn(4)), (A[None].double(), B.t(), torch.randn(4))),
        (torch.mv, (A, V), (A, V.double())),
    ],
)
def test_eagers_error_and_no_other(function: Callable[..., Any], good: tuple[Any, ...], bad: tuple[Any, ...], store: Store) -> None:
    def program(*args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*args)
        return result * 2

    compiled = precast.compile(program, store=store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RuntimeError, match="dtype"):
                compiled(*bad)
        torch.testing.assert_close(compiled(*good), program(*good))
    (program_,) = site_of(compiled).programs
    assert program_.variants, "a wrong call did not make it eager"
