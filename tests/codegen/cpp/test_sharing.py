"""Loops that threads share in pieces: every point runs once, whatever the sizes, the number of threads and the steps of the nest."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import precast
from precast.codegen.common.toolchain import compile_shared
from precast.codegen.cpp.body import Level
from precast.codegen.cpp.sharing import SHARES, Loop, in_pieces
from precast.codegen.cpp.types import PROLOGUE

NESTS = {
    "one": [Loop("x0", "a")],
    "steps": [Loop("x0", "a", 3), Loop("x1", "b", 4)],
    "three": [Loop("x0", "a"), Loop("x1", "b", 2), Loop("x2", "c")],
}


def test_every_point_of_a_nest_runs_once(tmp_path: Path) -> None:
    source = PROLOGUE + SHARES
    for name, loops in NESTS.items():
        level = Level(frozenset(), 1)
        index = "((x0 * 100 + x1) * 100 + x2)"
        for loop in ("x0", "x1", "x2"):
            index = index if any(loop == own.variable for own in loops) else index.replace(loop, "0")
        in_pieces(loops, [f"__atomic_fetch_add(&hits[{index}], 1, __ATOMIC_RELAXED);"], "int64_t", "num_threads(threads)", "ns", level)
        sizes = "int32_t* hits, int64_t a, int64_t b, int64_t c, int threads, double ns"
        body = "\n".join(level.lines)
        source += f'extern "C" __attribute__((visibility("default"))) void {name}({sizes}) {{\n{body}\n}}\n'
    path = tmp_path / "nests.so"
    path.write_bytes(compile_shared(source, "cpu:x86-64", ""))
    library = ctypes.CDLL(str(path))
    number = ctypes.c_int64
    for name, loops in NESTS.items():
        for a, b, c in ((1, 1, 1), (7, 5, 3), (20, 9, 2), (0, 3, 3), (3, 0, 2)):
            want = torch.zeros(30, 100, 100, dtype=torch.int32)
            points = [range(0, n, loop.step) for n, loop in zip((a, b, c), loops, strict=False)]
            for place in torch.cartesian_prod(*(torch.tensor(list(p), dtype=torch.int64) for p in points)).reshape(-1, len(loops)).tolist():
                want[(*place, 0, 0)[:3]] += 1
            for threads, ns in ((1, 1e9), (2, 0.0), (3, 1e5), (5, 1e12), (70, 1e9)):
                hits = torch.zeros_like(want)
                library[name](ctypes.c_void_p(hits.data_ptr()), number(a), number(b), number(c), ctypes.c_int(threads), ctypes.c_double(ns))
                assert torch.equal(hits, want), (name, a, b, c, threads, ns)


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_long_loops_with_any_number_of_threads(dynamic: bool, store: Path) -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (
            x.softmax(-1),
            (x.t().sin() + y).contiguous(),
            (x * x).sum(0),
            x.sum(-1),
            x.square().sum(),
            (x[:, None] * y.t()[:, :1, None]).tanh(),
        )

    compiled = precast.compile(program, store=store, dynamic=dynamic)
    before = torch.get_num_threads()
    try:
        for n, m in ((300, 401), (413, 256))[: 1 + dynamic]:
            x, y = torch.randn(n, m), torch.randn(m, n)
            want = program(x.double(), y.double())
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                for got, exact in zip(compiled(x, y), want, strict=True):
                    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


def test_pieces_of_loops_whose_extents_are_products(store: Path) -> None:
    """Rows and columns of an image that a stride halves are one loop, of `((1 + h) / 2)*((1 + w) / 2)` rounds."""

    def program(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        return F.hardsigmoid(F.conv2d(x, w, stride=2, padding=1) * scale)

    compiled = precast.compile(program, store=store)
    w = torch.randn(33, 3, 3, 3).to(memory_format=torch.channels_last)
    scale = torch.randn(2, 33, 1, 1)
    for height, width in ((20, 33), (61, 40), (5, 7)):
        x = torch.randn(2, 3, height, width).to(memory_format=torch.channels_last)
        precast.mark_dynamic(x, 2)
        precast.mark_dynamic(x, 3)
        torch.testing.assert_close(compiled(x, w, scale), program(x, w, scale), rtol=1e-4, atol=1e-4)
