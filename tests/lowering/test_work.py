"""The bytes and operations that steps have to do at least, against counts by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precast.lowering.costs.records import Work
from precast.lowering.costs.work import work_of
from precast.lowering.ir.index import contiguous_strides
from precast.lowering.ir.nodes import Buffer, Extern, View
from precast.lowering.ir.scalars import DType
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule
from tests.lowering.test_lowered_steps import program_of, t

N = 64 * 32


def works_of(fn: Callable[..., Any], *args: torch.Tensor) -> list[Work]:
    """Of the steps that the function's schedule for a CPU has."""
    program = schedule(program_of(fn, *args), "cpu:x86-64-v3", LoweringOptions(), ())
    buffers = {b.name: b for b in program.buffers}
    return [work_of(step, buffers) for step in program.steps]


@pytest.mark.parametrize(
    ("fn", "args", "read", "written", "operations"),
    [
        (lambda x: x * 2 + 1, (t(64, 32),), 4 * N, 4 * N, 2 * N),
        (lambda x: x.exp(), (t(64, 32),), 4 * N, 4 * N, 8 * N),
        (lambda x, y: x + y, (t(64, 32), t(32)), 4 * (N + 32), 4 * N, N),
        (lambda x: x.sum(1), (t(64, 32),), 4 * N, 4 * 64, N),
        (lambda x: x[:16] + 1, (t(64, 32),), 4 * 16 * 32, 4 * 16 * 32, 16 * 32),
        (lambda x: x.t().contiguous(), (t(64, 32),), 4 * N, 4 * N, 0),
        (lambda x: x.bfloat16(), (t(64, 32),), 4 * N, 2 * N, 0),
        (lambda x: torch.cat([x[:32], x[32:]]) * 2, (t(64, 32),), 4 * N, 4 * N, None),
    ],
    ids=["two operations", "a transcendental", "a broadcast", "a sum", "a slice", "a transpose", "a cast", "two halves"],
)  # fmt: skip
def test_kernels(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], read: int, written: int, operations: int | None) -> None:
    (work,) = works_of(fn, *args)
    assert (sum(work.read.values()), sum(work.written.values())) == (read, written)
    assert operations is None or work.operations == operations
    assert not work.products and work.bytes == read + written


def test_what_is_looked_up_counts_once_a_row() -> None:
    (work,) = works_of(lambda table, i: table[i] * 2, t(1000, 32), torch.randint(0, 1000, (64,)))
    assert sum(work.read.values()) == 4 * N + 8 * 64


def test_a_stencil_reads_its_input_once() -> None:
    (work,) = works_of(lambda x: F.avg_pool2d(x, 3, 1, 1), t(2, 4, 16, 16))
    assert sum(work.read.values()) == sum(work.written.values()) == 4 * 2 * 4 * 16 * 16


@pytest.mark.parametrize(
    ("fn", "args", "operations"),
    [
        (lambda a, b: a @ b, (t(8, 16), t(16, 4)), 2 * 8 * 16 * 4),
        (torch.bmm, (t(3, 8, 16), t(3, 16, 4)), 2 * 3 * 8 * 16 * 4),
        (lambda x, w: F.conv2d(x, w, padding=1), (t(2, 3, 8, 8), t(5, 3, 3, 3)), 2 * 2 * 64 * 5 * 3 * 9),
        (lambda x, w: F.conv2d(x, w, groups=3), (t(2, 3, 8, 8), t(6, 1, 3, 3)), 2 * 2 * 36 * 6 * 9),
        (lambda x, w: F.conv_transpose2d(x, w, stride=2), (t(2, 3, 8, 8), t(3, 5, 2, 2)), 2 * 2 * 64 * 3 * 5 * 4),
    ],
    ids=["a product", "a batch of products", "a convolution", "a grouped one", "a transposed one"],
)  # fmt: skip
def test_products_and_convolutions(fn: Callable[..., Any], args: tuple[torch.Tensor, ...], operations: int) -> None:
    found = [work for work in works_of(fn, *args) if work.products]
    assert [work.operations for work in found] == [operations] and found[0].arithmetic == "f32"


def test_an_operator_without_a_formula_has_bytes_only() -> None:
    work = next(w for w in works_of(lambda x: torch.linalg.inv(x), t(16, 16)) if w.operations is None)
    assert not work.products and sum(work.read.values()) == 4 * 256


def test_a_fused_convolution_has_the_operations_of_its_convolution() -> None:
    buffers = [Buffer(name, DType.BF16, size, contiguous_strides(size)) for name, size in SIZES.items()]
    x, w, b = (View(name, SIZES[name], contiguous_strides(SIZES[name])) for name in ("x", "w", "b"))
    step = Extern("aten::cudnn_convolution_relu", (x, w, b, (1, 1), (1, 1), (1, 1), 1), (), ("y",))
    work = work_of(step, {buffer.name: buffer for buffer in buffers})
    assert work.operations == 2 * 2 * 6 * 6 * 16 * 8 * 3 * 3 and work.products and work.arithmetic == "bf16"


SIZES: dict[str, tuple[int, ...]] = {"x": (2, 8, 6, 6), "w": (16, 8, 3, 3), "b": (16,), "y": (2, 16, 6, 6)}
