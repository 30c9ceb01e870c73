"""Copies whose reads and writes are consecutive along different axes, some of them short, and, as a process of its own, what Triton's
interpreter says of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import Tensor

LAST = torch.channels_last


def weight(w: Tensor) -> Tensor:
    """A convolution's weight with its channels innermost."""
    return w.permute(0, 2, 3, 1).contiguous()


def planes(x: Tensor) -> Tensor:
    """An image's few channels as planes."""
    return x.permute(0, 3, 1, 2).contiguous()


def weights(*every: Tensor) -> tuple[Tensor, ...]:
    """Several of them, which share a launch."""
    return tuple(w.permute(0, 2, 3, 1).contiguous() for w in every)


def neighbours(x: Tensor) -> Tensor:
    """The largest of each point's neighbours, read along channels and written along points."""
    return x.relu().amax(2).transpose(1, 2).contiguous()


def places(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With their places, and once more along channels."""
    largest, place = x.max(2)
    return largest.transpose(1, 2).contiguous(), place.transpose(1, 2).contiguous(), x.amin(2)


CASES: dict[str, tuple[Callable[..., object], Callable[[], tuple[Tensor, ...]]]] = {
    "3x3": (weight, lambda: (torch.randn(37, 70, 3, 3),)),
    "3x3 of few": (weight, lambda: (torch.randn(5, 20, 3, 3),)),
    "2x2, bfloat16": (weight, lambda: (torch.randn(33, 130, 2, 2).bfloat16(),)),
    "5x5, float16": (weight, lambda: (torch.randn(9, 24, 5, 5).half(),)),
    "integers": (weight, lambda: (torch.randint(-100, 100, (17, 40, 3, 3), dtype=torch.int8),)),
    "slice": (weight, lambda: (torch.randn(20, 48, 3, 3)[::2, 3:],)),
    "colours": (planes, lambda: (torch.randn(2, 19, 23, 3),)),
    "one pixel": (planes, lambda: (torch.randn(1, 1, 1, 3),)),
    "neighbours": (neighbours, lambda: (torch.randn(2, 37, 20, 21),)),
    "neighbours, half": (neighbours, lambda: (torch.randn(3, 70, 31, 24).half(),)),
    "places of neighbours": (places, lambda: (torch.randn(2, 37, 19, 21),)),
    "together": (weights, lambda: tuple(torch.randn(8 + n, 21, 3, 3) for n in range(4))),
}


def main() -> None:
    from tests.codegen.triton.emulate import run
    from tests.ops.runners import program_of

    failures: dict[str, str] = {}
    torch.manual_seed(3)
    for name, (fn, made) in CASES.items():
        inputs = made()
        for symbolic in (False, True):
            program, rebuild = program_of(fn, inputs, schedule=True, target="cuda:sm_90", symbolic=symbolic)
            got, want = rebuild(run(program, list(inputs), None)), fn(*inputs)
            pairs = list(zip(got, want, strict=True)) if isinstance(want, tuple) else [(got, want)]
            if not all(torch.equal(g, w) for g, w in pairs):
                failures[f"{name}, {'symbols' if symbolic else 'sizes'}"] = "differs"
    print(json.dumps(failures))


if __name__ == "__main__":
    main()
