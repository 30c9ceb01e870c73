"""Operands of several types, which eager refuses: the same error, at each call, and nothing that makes the program eager for good."""

from __future__ import annotations

import ctypes
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import precast
from precast.artifact_store import Store
from precast.lowering.ir.nodes import Extern
from precast.runtime.api.compile import site_of
from tests.ops.runners import program_of

DOUBLE = torch.float64
KEEPS_TEXT = hasattr(
    ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")), "torch_exception_get_what_without_backtrace"
)
"""Whether a failed library call hands out its text: torch before 2.12 writes it to stderr."""
A, B, V = torch.randn(3, 8), torch.randn(8, 4), torch.randn(8)


def said(error: BaseException, capfd: pytest.CaptureFixture[str]) -> str:
    """What a user is told: by the error, or beside it where the error says so."""
    text = str(error)
    beside = capfd.readouterr().err
    return text + beside if not KEEPS_TEXT and "it is on stderr" in text else text


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
def test_eagers_error_and_no_other(
    function: Callable[..., Any], good: tuple[Any, ...], bad: tuple[Any, ...], store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    def program(*args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*args)
        return result * 2

    compiled = precast.compile(program, store=store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            with pytest.raises(RuntimeError) as error:
                compiled(*bad)
            assert re.search("dtype|scalar type", said(error.value, capfd))
        torch.testing.assert_close(compiled(*good), program(*good))
    (program_,) = site_of(compiled).programs
    assert program_.variants, "a wrong call did not make it eager"


X, C, D = torch.randn(4, 6, 5), torch.rand(6), torch.rand(5)
ZERO, ROW, PICKED = torch.tensor([0]), torch.ones(1, 6, 5), torch.tensor([0, 2, 1])
WRONG_TYPES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "layer_norm": (lambda x, w: F.layer_norm(x, (5,), w, w), (X, D), (X, D.double())),
    "layer_norm, half": (lambda x, w: F.layer_norm(x, (5,), w, w), (X, D), (X, D.bfloat16())),
    "layer_norm, two": (lambda x, w, b: F.layer_norm(x, (5,), w, b), (X, D, D), (X, D, D.double())),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w, w), (X, C), (X, C.double())),
    "batch_norm": (lambda x, w: F.batch_norm(x, w, w, w, w), (X, C), (X, C.double())),
    "batch_norm, statistics": (lambda x, m, w: F.batch_norm(x, m, m, w, w), (X, C, C), (X, C.double(), C)),
    "batch_norm, training": (lambda x, w: F.batch_norm(x, None, None, w, w, training=True), (X, C), (X, C.double())),
    "index_put": (lambda x, y: x.index_put((ZERO,), y), (X, ROW[0]), (X, ROW[0].double())),
    "index_add": (lambda x, y: x.index_add(0, ZERO, y), (X, ROW), (X, ROW.double())),
    "index_copy": (lambda x, y: x.index_copy(0, ZERO, y), (X, ROW), (X, ROW.double())),
    "index_select": (lambda x, i: x.index_select(0, i), (X, ZERO), (X, ZERO.float())),
    "index_fill": (lambda x, i: x.index_fill(0, i, 1.0), (X, ZERO), (X, ZERO.int())),
    "cross": (lambda x, y: torch.linalg.cross(x, y), (A[:, :3], A[:, 3:6]), (A[:, :3], A[:, 3:6].double())),
    "heaviside": (torch.heaviside, (X, ROW), (X, ROW.double())),
    "grid_sample": (
        lambda x, y: F.grid_sample(x, y, align_corners=False),
        (torch.randn(1, 2, 4, 4), torch.rand(1, 3, 3, 2)),
        (torch.randn(1, 2, 4, 4), torch.rand(1, 3, 3, 2).double()),
    ),
    "binary_cross_entropy": (F.binary_cross_entropy, (C, C), (C, C.double())),
    "nll_loss": (F.nll_loss, (A, PICKED), (A, PICKED.int())),
    "nll_loss, weight": (F.nll_loss, (A, PICKED, torch.ones(8)), (A, PICKED, torch.ones(8, dtype=DOUBLE))),
    "cross_entropy": (F.cross_entropy, (A, PICKED), (A, PICKED.int())),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_what_eager_refuses_for_its_types(name: str, store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    """The decompositions and the tracer's stand-ins promote instead."""
    function, good, bad = WRONG_TYPES[name]

    def program(*args: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = function(*args)
        return result * 2

    compiled = precast.compile(program, store=store)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        program(*bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((RuntimeError, IndexError)) as ours:
            compiled(*bad)
        torch.testing.assert_close(compiled(*good), program(*good))
    assert str(eager.value).splitlines()[0] in said(ours.value, capfd)


def test_half_types_beside_parameters_in_float32_stay_ours() -> None:
    program, _ = program_of(lambda x, w: F.layer_norm(x, (5,), w, w), (X.bfloat16(), D), schedule=True)
    assert not [step for step in program.steps if isinstance(step, Extern)]
