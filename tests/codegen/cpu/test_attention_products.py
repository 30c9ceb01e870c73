"""Attention written out in bfloat16 runs as the products and the softmax that it was, and is no further from float64 than eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import precast
from precast.codegen.cpu.select_library import write_out_attention
from precast.codegen.cpu.tuning import Chooser
from precast.lowering.ir.nodes import Attention, Gemm, Kernel
from tests.ops.runners import program_of


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.125).softmax(-1) @ v


def heads_inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[batch, rows, heads, depth], as projections leave them."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return ((q @ k.transpose(-1, -2) / 8).softmax(-1) @ v).transpose(1, 2).flatten(2)


def one_image(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q[:1], k[:1], v[:1]).relu()


@pytest.mark.parametrize("fn, rows, keys", [(plain, 64, 64), (plain, 33, 70), (heads_inside, 48, 3), (one_image, 40, 128)])
def test_as_exact_as_eager(fn: object, rows: int, keys: int, tmp_path: Path) -> None:
    assert callable(fn)
    heads = 4 if fn is not heads_inside else rows
    q = torch.randn(2, heads, rows if fn is not heads_inside else 4, 64).bfloat16()
    k, v = (torch.randn(2, heads if fn is heads_inside else 4, keys if fn is not heads_inside else 4, 64).bfloat16() for _ in range(2))
    exact, eager = fn(q.double(), k.double(), v.double()), fn(q, k, v)
    found = precast.compile(fn, store=tmp_path, dynamic=False)(q, k, v)
    assert found.dtype is torch.bfloat16 and found.shape == eager.shape
    assert (found.double() - exact).abs().max() <= 1.5 * (eager.double() - exact).abs().max() + 1e-3


@pytest.mark.parametrize(
    "dtype, bfloat16, products",
    [(torch.bfloat16, True, True), (torch.bfloat16, False, False), (torch.float16, True, False), (torch.float32, True, False)],
)
def test_what_is_written_out(dtype: torch.dtype, bfloat16: bool, products: bool) -> None:
    """Only where oneDNN has products of the type; attention that the program calls by name stays whole."""
    inputs = tuple(torch.zeros(2, 4, 32, 64, dtype=dtype) for _ in range(3))
    for fn, wanted in ((plain, products), (torch.nn.functional.scaled_dot_product_attention, False)):
        program, _ = program_of(fn, inputs, schedule=True)
        steps = write_out_attention(program, Chooser(measure=False, bfloat16=bfloat16)).steps
        assert [type(s) for s in steps] == ([Gemm, Kernel, Gemm] if wanted else [Attention])
