"""Products of many rows and little depth: what they are made of, and, as a process of its own, what Triton's interpreter says of them."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from precast.lowering.analysis.traits import SM_90
from precast.lowering.ir.nodes import Conv, Gemm, Program
from precast.lowering.passes.gpu.matmul_template_fusion import ProductFusion
from precast.lowering.targets.scheduling import Pass

Fn = Callable[..., Tensor]
LAST = torch.channels_last


def norm(x: Tensor, p: Tensor) -> Tensor:
    """Evaluated batch norm; `p` [4, channels]: mean, variance, weight, bias."""
    return F.batch_norm(x, p[0], p[1], p[2], p[3])


def image(channels: int, side: int, count: int = 2) -> Tensor:
    return torch.randn(count, channels, side, side).to(memory_format=LAST)


def weight(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs, 1, 1) / inputs**0.5


def norms(channels: int) -> Tensor:
    return torch.stack([torch.randn(channels) / 4, torch.rand(channels) + 0.5, torch.rand(channels) + 0.5, torch.randn(channels) / 4])


def reduced(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    return F.relu(norm(F.conv2d(x, w), p)) + 1


def bottleneck(x: Tensor, q: Tensor, w: Tensor, p: Tensor, rest: Tensor) -> Tensor:
    return F.relu(norm(F.conv2d(F.relu(norm(x, q)), w), p) + rest)


def shortcut(x: Tensor, w: Tensor, p: Tensor, y: Tensor, v: Tensor, q: Tensor) -> Tensor:
    return F.relu(norm(F.conv2d(x, w), p) + norm(F.conv2d(y, v), q))


def strided(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.conv2d(x, w, b, stride=2).sigmoid()


def feed_forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def gated(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    gate, value = torch.addmm(b, x, w).chunk(2, -1)
    return value * gate.sigmoid()


def joined(x: Tensor, w: Tensor, b: Tensor, rest: Tensor) -> Tensor:
    return torch.cat([F.linear(x.tanh(), w, b) * 2, rest], -1)


CASES: dict[Fn, Callable[[], tuple[Tensor, ...]]] = {
    reduced: lambda: (image(128, 46), weight(64, 128), norms(64)),
    bottleneck: lambda: (image(64, 46), norms(64), weight(96, 64), norms(96), image(96, 46)),
    shortcut: lambda: (image(64, 46), weight(64, 64), norms(64), image(64, 46), weight(64, 64), norms(64)),
    strided: lambda: (image(72, 91), weight(80, 72), torch.randn(80)),
    feed_forward: lambda: (torch.randn(4100, 72), torch.randn(136, 72) / 8, torch.randn(136)),
    gated: lambda: (torch.randn(4096, 64), torch.randn(64, 128) / 8, torch.randn(128)),
    joined: lambda: (torch.randn(4096, 64), torch.randn(64, 64) / 8, torch.randn(64), torch.randn(4096, 8)),
}
"""What makes the arguments of each, in float32."""
DEEP: dict[Fn, Callable[[], tuple[Tensor, ...]]] = {
    feed_forward: lambda: (torch.randn(96, 640), torch.randn(136, 640) / 25, torch.randn(136)),
    gated: lambda: (torch.randn(80, 1032), torch.randn(1032, 256) / 32, torch.randn(256)),
    bottleneck: lambda: (image(576, 9), norms(576), weight(192, 576), norms(192), image(192, 9)),
}
"""Products that are a library's by the rule, and may be kernels where a device measured so."""


def every_product(program: Program) -> Program:
    """The pass that takes every product into a kernel."""
    fusion = ProductFusion(program, SM_90)
    for candidate in fusion.candidates():
        for alternative in fusion.alternatives(candidate):
            fusion.take(alternative)
    return fusion.program_now()


LARGEST = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


def halved(tensors: tuple[Tensor, ...], half: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(t.to(half) for t in tensors)


def error(got: Tensor, want: Tensor) -> float:
    """The largest difference from a float64 answer, as a share of its largest value."""
    return ((got.double() - want).abs().max() / want.abs().max()).item()


def main() -> None:
    from tests.codegen.triton.emulate import run
    from tests.ops.runners import program_of

    failures: dict[str, str] = {}
    torch.manual_seed(7)
    plain: dict[str, Pass] = {}
    every = [(fn, made, plain) for fn, made in CASES.items()]
    every += [(fn, made, {"products in kernels": every_product}) for fn, made in DEEP.items()]
    for number, (fn, made, instead) in enumerate(every):
        half = (torch.bfloat16, torch.float16)[number % 2]
        inputs = halved(made(), half)
        program, rebuild = program_of(fn, inputs, schedule=True, target="cuda:sm_90", instead=instead)
        want, eager = fn(*(t.double() for t in inputs)), fn(*inputs)
        got = rebuild(run(program, list(inputs), None))
        ours, theirs = error(got, want), error(eager, want)
        if any(isinstance(step, Gemm | Conv) for step in program.steps):
            failures[f"{fn.__name__}, {number}"] = "a library's product is left"
        if got.shape != eager.shape or not ours < max(1.5 * theirs, LARGEST[half]):
            failures[f"{fn.__name__}, {number}"] = f"{ours:.2e}, eager {theirs:.2e}"
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
