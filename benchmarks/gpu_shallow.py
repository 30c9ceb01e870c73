"""Products of many rows and little depth on a GPU, on the shapes of a ResNet-50's 1x1 convolutions: cuBLAS and elementwise kernels for what
stands around it, against one Triton kernel that does all of it.

The kernels are written by hand and their blocks swept: this is what the bounds of lowering/passes/gpu/skinny_matmul_rule.py and its
default tiling rest on,
not what precast generates (`gpu.py --rows resnet50` measures that). Each is captured in a CUDA graph of 20 calls. For each shape:
microseconds of a call with cuBLAS (and of cuBLAS alone), the fastest blocks (rows, columns, depth, warps, stages) with theirs, and the
relative distance of the two results, in bfloat16.

    python benchmarks/gpu_shallow.py [--seconds 28]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from gpu_measure import captured
from torch import Tensor
from triton.runtime.errors import OutOfResources

CALLS = 20
BLOCK = 1024
SHAPES = (
    (100352, 64, 64, False, False),
    (100352, 256, 64, False, False),
    (100352, 64, 256, True, True),
    (100352, 64, 256, False, False),
    (100352, 256, 128, False, False),
    (25088, 512, 128, False, False),
    (25088, 128, 512, True, True),
    (25088, 512, 256, False, False),
    (6272, 1024, 256, False, False),
    (6272, 256, 1024, True, True),
    (1568, 2048, 512, False, False),
    (1568, 512, 2048, True, True),
)
"""Rows, depth, columns; whether a norm with a ReLU stands before, and whether a residual is added behind."""
Blocks = tuple[int, int, int, int, int]


@triton.jit
def elementwise(x, rest, scale, mean, out, rows, columns: tl.constexpr, add: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """A norm by channel, rounded as eager rounds it, a residual, a ReLU."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < rows * columns
    c = i % columns
    v = tl.load(x + i, inside).to(tl.float32)
    v = ((v - tl.load(mean + c)) * tl.load(scale + c)).to(tl.bfloat16).to(tl.float32)
    if add:
        v = v + tl.load(rest + i, inside).to(tl.float32)
    v = tl.where(v < 0, 0.0, v)
    tl.store(out + i, v.to(tl.bfloat16), inside)


@triton.jit
def product(  # type: ignore[no-untyped-def]
    x,
    w,
    first_scale,
    first_mean,
    rest,
    scale,
    mean,
    out,
    rows,
    columns: tl.constexpr,
    depth: tl.constexpr,
    norm: tl.constexpr,
    add: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_k: tl.constexpr,
    stages: tl.constexpr,
):
    """The same with the product, and with the norm and the ReLU before it."""
    program = tl.program_id(0)
    across = (columns + block_n - 1) // block_n
    m = (program // across) * block_m + tl.arange(0, block_m)
    n = (program % across) * block_n + tl.arange(0, block_n)
    total = tl.zeros([block_m, block_n], tl.float32)
    inside = (m < rows)[:, None]
    for start in tl.range(0, depth, block_k, num_stages=stages):
        k = start + tl.arange(0, block_k)
        a = tl.load(x + m[:, None] * depth + k[None, :], inside, other=0)
        if norm:
            a = ((a.to(tl.float32) - tl.load(first_mean + k)[None, :]) * tl.load(first_scale + k)[None, :]).to(tl.bfloat16)
            a = tl.where(a < 0, 0.0, a).to(tl.bfloat16)
        b = tl.load(w + n[:, None] * depth + k[None, :])
        total = tl.dot(a, tl.trans(b), total)
    v = total.to(tl.bfloat16).to(tl.float32)
    v = ((v - tl.load(mean + n)[None, :]) * tl.load(scale + n)[None, :]).to(tl.bfloat16).to(tl.float32)
    place = m[:, None] * columns + n[None, :]
    if add:
        v = v + tl.load(rest + place, inside, other=0).to(tl.float32)
    v = tl.where(v < 0, 0.0, v)
    tl.store(out + place, v.to(tl.bfloat16), inside)


class Case:
    """One shape, its operands and both ways."""

    def __init__(self, rows: int, depth: int, columns: int, norm: bool, add: bool, device: str = "cuda") -> None:
        def half(*size: int) -> Tensor:
            return torch.randn(*size, device=device).bfloat16()

        self.rows, self.depth, self.columns, self.norm, self.add = rows, depth, columns, norm, add
        self.x, self.w, self.rest = half(rows, depth), half(columns, depth) / 8, half(rows, columns)
        self.first = (torch.rand(depth, device=device) + 0.5, torch.randn(depth, device=device) / 10)
        self.last = (torch.rand(columns, device=device) + 0.5, torch.randn(columns, device=device) / 10)
        self.normed, self.multiplied = torch.empty_like(self.x), torch.empty_like(self.rest)
        self.apart, self.fused = torch.empty_like(self.rest), torch.empty_like(self.rest)

    def multiply(self) -> None:
        torch.mm(self.normed if self.norm else self.x, self.w.t(), out=self.multiplied)

    def in_steps(self) -> None:
        """cuBLAS, and a kernel for what stands before and one for what stands behind."""
        if self.norm:
            grid = (triton.cdiv(self.x.numel(), BLOCK),)
            elementwise[grid](self.x, self.x, *self.first, self.normed, self.rows, self.depth, False, BLOCK)
        self.multiply()
        grid = (triton.cdiv(self.rest.numel(), BLOCK),)
        elementwise[grid](self.multiplied, self.rest, *self.last, self.apart, self.rows, self.columns, self.add, BLOCK)

    def in_one(self, blocks: Blocks) -> None:
        m, n, k, warps, stages = blocks
        given = (self.x, self.w, *self.first, self.rest, *self.last, self.fused, self.rows, self.columns, self.depth, self.norm, self.add)
        product[(triton.cdiv(self.rows, m) * triton.cdiv(self.columns, n),)](*given, m, n, k, stages, num_warps=warps)

    def candidates(self) -> Iterator[Blocks]:
        for m, n, k, warps, stages in itertools.product((64, 128, 256), (64, 128, 256), (32, 64, 128), (4, 8), (1, 2, 3, 4)):
            small = n <= self.columns and k <= self.depth and m * n <= 128 * 256 and (warps == 8 or m * n <= 128 * 128)
            looped = stages == 1 if self.depth <= k else stages > 1 or self.depth <= 2 * k
            if small and looped and (k > 32 or self.depth <= 64) and (m + n) * k * 2 * stages <= 200 << 10:
                yield m, n, k, warps, stages


def microseconds(call: Callable[[], Any], rounds: int = 5) -> float:
    """Of one call: the median of the rounds."""
    replay = captured(call, CALLS)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(rounds + 1):
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / CALLS)
    return statistics.median(times[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=28, help="of the sweep of each shape")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device", file=sys.stderr)
        return 2
    print("   rows  depth  columns  norm  residual   cuBLAS and kernels (cuBLAS)   one kernel  ratio  difference  blocks")
    for shape in SHAPES:
        case = Case(*shape)
        apart, alone = microseconds(case.in_steps), microseconds(case.multiply)
        found: list[tuple[float, Blocks]] = []
        until = time.monotonic() + given.seconds
        for blocks in case.candidates():
            if time.monotonic() > until:
                break
            try:
                found.append((microseconds(partial(case.in_one, blocks), 3), blocks))
            except OutOfResources:
                continue  # more shared memory or registers than the device has: not a candidate here
        best, blocks = min(found)
        case.in_one(blocks)
        far = ((case.fused.float() - case.apart.float()).norm() / case.apart.float().norm()).item()
        rows, depth, columns, norm, add = shape
        head = f"{rows:7}{depth:7}{columns:9}{'yes' if norm else '':>6}{'yes' if add else '':>10}"
        print(f"{head}{apart:21.1f} ({alone:.1f}){best:17.1f}{apart / best:7.2f}{far:12.1e}  {blocks}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
