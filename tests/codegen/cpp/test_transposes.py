"""Blocks that are turned on the way: every width of element, squares and what is left beside them, reads and writes, masks, odd sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.codegen.common.toolchain import compile_shared
from precast.codegen.cpp.kernel import render_kernel
from precast.codegen.cpp.transposes import helpers
from precast.codegen.cpp.types import PROLOGUE
from tests.ops.runners import program_of

WIDTHS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.mark.parametrize("target", ["cpu:x86-64", "cpu:x86-64-v3", "cpu:native"])
def test_helpers_turn_any_matrix_and_write_nothing_beside_it(target: str, tmp_path: Path) -> None:
    names = [f"{how}_{size}" for how in ("lines_to_tile", "tile_to_lines") for size in WIDTHS]
    exported = "".join(
        f'extern "C" __attribute__((visibility("default"))) void turn_{n}(void* a, int64_t f, void* b, int64_t t, int64_t r, int64_t c)'
        f" {{ {n}(a, f, b, t, r, c); }}\n"
        for n in names
    )
    path = tmp_path / "turn.so"
    path.write_bytes(compile_shared(PROLOGUE + helpers(exported) + exported, target, ""))
    library = ctypes.CDLL(str(path))
    for name in names:
        turn, dtype = library[f"turn_{name}"], WIDTHS[int(name[-1])]
        number, place = ctypes.c_int64, ctypes.c_void_p
        given = torch.randint(1, 120, (140, 141), dtype=dtype)
        for rows, columns in product((0, 1, 3, 4, 8, 15, 16, 17, 31, 32, 33, 64, 130), (0, 1, 2, 4, 7, 8, 16, 30, 32, 41, 64, 72, 140)):
            got, want = torch.zeros(143, 144, dtype=dtype), torch.zeros(143, 144, dtype=dtype)
            want[:columns, :rows] = given[:rows, :columns].t()
            turn(place(given.data_ptr()), number(141), place(got.data_ptr()), number(144), number(rows), number(columns))
            assert torch.equal(got, want), (name, rows, columns)


def fits(got: Tensor, want: Tensor) -> None:
    rtol = 1.6e-2 if got.dtype is torch.bfloat16 else 2e-3
    torch.testing.assert_close(got, want, rtol=rtol, atol=1e-5, equal_nan=True, check_stride=got.numel() > 0)


def run(program: Callable[..., tuple[Tensor, ...]], inputs: tuple[Tensor, ...], store: Path, **more: bool) -> None:
    compiled = precast.compile(program, store=store, **more)
    for got, want in zip(compiled(*inputs), program(*inputs), strict=True):
        fits(got, want)


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def test_reads_across_of_every_type(store: Path) -> None:
    def program(*each: Tensor) -> tuple[Tensor, ...]:
        return (*((x.t() + 1).contiguous() for x in each), (~each[0].isnan().t()).contiguous(), (each[2].t().float() * 2).contiguous())

    matrices = tuple(torch.randn(67, 50).mul(9).to(d) for d in DTYPES)
    matrices[0][3, 5], matrices[0][66, 49], matrices[0][66, 0] = float("nan"), float("inf"), float("-inf")
    run(program, matrices, store)


def shapes(x: Tensor, y: Tensor, z: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    return (
        F.gelu(x.t()).contiguous(),
        x.t() + y,  # two orders at once
        (x * 2, (x * 2 + row).t().contiguous()),  # one value, written in two orders
        (z.permute(0, 2, 3, 1) * 2).contiguous(),
        (z.permute(3, 1, 0, 2) + 1).contiguous(),
        (x.t()[:, ::2] + 1).contiguous(),
        torch.cat([x.t() + 1, y * 2], 0),  # a part of the rows, by a mask
        torch.cat([x.t() + 1, y * 2], 1),
        F.pad(x.t(), (1, 2, 3, 0)) * 2,
        (x.expand(3, *x.shape).transpose(1, 2) + y).contiguous(),
        x.t().masked_fill(y > 0, 0.0) * 3,
        (x.t() + y).sum(1),
    )


def flat(*inputs: Tensor) -> tuple[Tensor, ...]:
    return tuple(t for each in shapes(*inputs) for t in (each if isinstance(each, tuple) else (each,)))


def inputs(n: int, m: int) -> tuple[Tensor, ...]:
    return torch.randn(n, m), torch.randn(m, n), torch.randn(2, 33, n // 2, m // 2), torch.randn(m)


def test_orders_masks_and_parts(store: Path) -> None:
    run(flat, inputs(65, 98), store, dynamic=False)


def test_sizes_that_vary(store: Path) -> None:
    compiled = precast.compile(flat, store=store, dynamic=True)
    for n, m in ((65, 98), (32, 64), (40, 130), (200, 34)):
        given = inputs(n, m)
        for got, want in zip(compiled(*given), flat(*given), strict=True):
            fits(got, want)


def test_large_matrices(store: Path) -> None:
    """Many blocks, of which the last of either axis are none of whole lines."""
    run(lambda x, y: (F.relu(x.t()) + y, (x + 1).t().contiguous()), (torch.randn(300, 513), torch.randn(513, 300)), store)


def test_nothing_at_all(store: Path) -> None:
    run(lambda x: ((x.t() + 1).contiguous(), (x.unsqueeze(0).permute(2, 1, 0) * 2).contiguous()), (torch.randn(0, 40),), store)


def test_a_block_reads_and_writes_whole_lines() -> None:
    """Four lines of each row of what lies across, for elements of any size."""
    for dtype, width in ((torch.float64, 32), (torch.float32, 64), (torch.bfloat16, 128), (torch.uint8, 256)):
        program, _ = program_of(lambda x, y: x.t() + y, (torch.zeros(640, 1024).to(dtype), torch.zeros(1024, 640).to(dtype)), schedule=True)
        (kernel,) = program.steps
        text = render_kernel(kernel, {b.name: b for b in program.buffers}).source
        assert f"[{width * 64}] __attribute__" in text and f"x0_0 += {width}" in text and "x1_0 += 64" in text, text
