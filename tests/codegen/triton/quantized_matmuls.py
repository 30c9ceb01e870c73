"""Products with weights in a narrower type: what they are made of, and, as a process of its own, what Triton's interpreter says of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from precast.codegen.triton.render.tiling import Tiling

Fn = Callable[[Tensor, Tensor, Tensor], Tensor | tuple[Tensor, ...]]


def scaled(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.linear(x, w.to(x.dtype)) * s


def zero_point(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return F.gelu(F.linear(x, (w.to(x.dtype) - 8) * s[:, None], s))


def gated(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    n = w.shape[0] // 2
    return F.silu(scaled(x, w[:n], s[:n])) * scaled(x, w[n:], s[n:])


def residual(x: Tensor, w: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    y = torch.addmm(s, x, w.t().to(x.dtype))
    return y + y.relu(), y.float() * 2


def heads(x: Tensor, w: Tensor, s: Tensor) -> Tensor:
    return scaled(x, w, s).view(x.shape[0], -1, 16).transpose(0, 1).contiguous() + 1


FUNCTIONS: tuple[Fn, ...] = (scaled, zero_point, gated, residual, heads)
SIZES = ((3, 64, 256), (5, 48, 300), (16, 80, 256), (33, 32, 272), (64, 96, 256), (70, 4096, 260))
"""Rows, columns and depth."""
SMALL = Tiling(16, rblock=16, depth=64, num_warps=4, num_stages=3)


def tensors(rows: int, columns: int, depth: int, half: torch.dtype, narrow: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """`x` [rows, depth], the weights [columns, depth], a scale for each column."""
    low = 0 if narrow is torch.uint8 else -8
    weights = torch.randint(low, 16, (columns, depth), dtype=narrow)
    return torch.randn(rows, depth).to(half), weights, (torch.rand(columns) / 8).to(half)


def main(every: int) -> None:
    """Each function with every so many of the sizes, others for each; prints what differs from eager."""
    from tests.codegen.triton.emulate import run
    from tests.ops.runners import program_of

    failures: dict[str, str] = {}
    torch.manual_seed(7)
    for number, fn in enumerate(FUNCTIONS):
        for case, size in enumerate(SIZES):
            if (number + case) % every:
                continue
            half, narrow = ((torch.bfloat16, torch.int8), (torch.float16, torch.uint8))[(number + case) % 2]
            inputs = tensors(*size, half, narrow)
            program, rebuild = program_of(fn, inputs, schedule=True, target="cuda:sm_90")
            want = fn(inputs[0].double(), inputs[1], inputs[2].double())
            eager = fn(*inputs)
            for tiling in (None, SMALL) if size[1] < 1024 else (None,):
                got = rebuild(run(program, list(inputs), tiling))
                for a, e, b in zip(*(of if isinstance(of, tuple) else (of,) for of in (got, eager, want)), strict=True):
                    error, theirs = (((r.double() - b).abs().max() / b.abs().max()).item() for r in (a, e))
                    bound = max(1.5 * theirs, 2 ** (-7 if half is torch.bfloat16 else -10))
                    if not error < bound:
                        failures[f"{fn.__name__} {size} {tiling}"] = f"{error:.2e}, allowed {bound:.2e}"
    print(json.dumps(failures))


if __name__ == "__main__":
    main(int(sys.argv[1]))
