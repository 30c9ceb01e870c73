"""Reductions over neighbouring axes: one long loop where memory has them in one range, the axes apart where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen.common.value_facts import Facts
from precast.codegen.cpp.planning.loop_plan import plan
from precast.lowering.ir.nodes import Kernel, Reduce, Store
from precast.lowering.ir.scalars import ReduceOp
from tests.codegen.programs import F32, at, axis, buffer, load


def program(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> tuple[Tensor, ...]:
    return (
        a.mean((2, 3)),
        a.amax((0, 2, 3)),
        b.flatten(2).argmax(-1),
        F.pad(b, (1, 2, 0, 1)).sum((2, 3)),  # read under a mask
        c[:, :, ::2].sum((2, 3)),
        c[..., 1:].sum((2, 3)),
        c.transpose(2, 3).exp().sum((1, 2, 3)),
        F.instance_norm(d),
        F.layer_norm(d, d.shape[1:]),
        (e * torch.arange(e.shape[-1])).sum((2, 3)),  # an index of one of the axes alone
        e.square().sum(),
    )


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sums_over_several_axes(dynamic: bool, store: Path) -> None:
    compiled = precast.compile(program, store=store, dynamic=dynamic)
    for size in ((3, 5, 9, 12), (2, 4, 70, 65))[: 1 + dynamic]:
        inputs = [torch.randn(size) for _ in range(5)]
        for got, want in zip(compiled(*inputs), program(*(x.double() for x in inputs)), strict=True):
            torch.testing.assert_close(got.double(), want.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride, loops", [((60, 12, 1), 1), ((80, 16, 1), 2), ((60, 1, 5), 2)])
def test_axes_are_one_where_memory_has_them_so(stride: tuple[int, ...], loops: int) -> None:
    i, j, k = axis("i", 4), axis("j", 5), axis("k", 12)
    x, o = buffer("x", (4, 5, 12), F32, stride), buffer("o", (4,))
    kernel = Kernel("sums", (i,), (Store(o.name, at(o, (i,)), Reduce(ReduceOp.SUM, load(x, (i, j, k)), (j, k), F32)),))
    (phase,) = plan(kernel, Facts())
    assert len(phase.sections[0].axes) == loops
