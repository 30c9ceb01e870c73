"""Reductions of long rows in one pass and in chunks: the cases, and, as a process of its own, what Triton's interpreter says of them."""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from precast.codegen.triton.render.tiling import Tiling
from precast.lowering.analysis.traits import SM_90
from precast.lowering.passes.gpu.split_reductions import gpu_reductions
from precast.lowering.targets.scheduling import Pass

INF, NAN = math.inf, math.nan
CHUNKS = replace(SM_90, processors=4, memory_rate=1, bytes_in_flight=1 << 40, cut_chunk=8, step_points=8, row_points=8)
"""A device on which every reduction of some length is worth chunks."""
IN_CHUNKS: dict[str, Pass] = {"gpu reductions": partial(gpu_reductions, traits=CHUNKS)}
LOOPED = Tiling(xblock=1, persistent=8, rblock=16, unroll=1, num_warps=1)


@dataclass(frozen=True)
class Case:
    """`program` of what `make` gives, against eager in float64 up to `error`, a share of the largest value."""

    program: Callable[..., Any]
    make: Callable[[], tuple[Tensor, ...]]
    error: float = 1e-5
    symbolic: bool = False


def _normal(*size: int, mean: float = 0.0, deviation: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(size, dtype=torch.float64) * deviation + mean).to(dtype)


def _with(*numbers: float, size: int = 133) -> Tensor:
    """Rows of which each holds some of these numbers, the last nothing else."""
    rows = _normal(len(numbers) + 1, size)
    for row, number in enumerate(numbers):
        rows[row, [3, 19, 70, size - 1]] = number
    rows[-1] = numbers[0]
    return rows


def _ties(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(0, 5, size).to(dtype)


def _channels_last(*size: int) -> Tensor:
    return _normal(*size).to(memory_format=torch.channels_last)


SPECIAL = (-INF, INF, NAN, -3.4028234663852886e38, 3e38)
CASES: dict[str, Case] = {
    "variance": Case(lambda a: a.var(-1), lambda: (_normal(5, 133),)),
    "variance about a large mean": Case(lambda a: a.var(-1), lambda: (_normal(3, 1031, mean=3e3, deviation=0.5),), 4e-5),
    "variance about a mean of few digits": Case(lambda a: a.var(-1), lambda: (_normal(3, 1031, mean=3e4, deviation=0.5),), 3e-4),
    "variance of what begins far away": Case(lambda a: a.var(-1), lambda: (torch.cat([_normal(3, 1) + 1e6, _normal(3, 515)], 1),), 3e-5),
    "variance and mean over two axes": Case(lambda a: torch.var_mean(a, (0, 2)), lambda: (_normal(9, 3, 29, mean=100.0),)),
    "variance of doubles": Case(lambda a: a.var(-1), lambda: (_normal(3, 133, mean=1e8, dtype=torch.float64),), 3e-8),
    "variance of constants": Case(lambda a: a.var(-1), lambda: (torch.full((3, 257), 1e3),), 1e-12),
    "variance of what overflows": Case(lambda a: a.var(-1), lambda: (_with(INF, NAN),)),
    "layer norm": Case(
        lambda a, w, b: F.layer_norm(a, (7, 19), w, b), lambda: (_normal(3, 7, 19, mean=50.0), _normal(7, 19), _normal(7, 19))
    ),
    "layer norm of bfloat16": Case(lambda a: F.layer_norm(a, (257,)), lambda: (_normal(3, 257, dtype=torch.bfloat16),), 2**-7),
    "group norm": Case(lambda a, w, b: F.silu(F.group_norm(a, 3, w, b)), lambda: (_normal(2, 6, 5, 11, mean=9.0), _normal(6), _normal(6))),
    "group norm, channels last": Case(lambda a: F.group_norm(a, 3), lambda: (_channels_last(2, 6, 5, 11),)),
    "group norm, channels last, half": Case(lambda a: F.group_norm(a, 8), lambda: (_channels_last(1, 32, 9, 31).half(),), 2**-9),
    "group norm of a convolution": Case(
        lambda a, w, b: F.silu(F.group_norm(F.conv2d(a, w, b, padding=1), 4)),
        lambda: (_normal(2, 5, 13, 9), _normal(16, 5, 3, 3), _normal(16, mean=9.0)),
    ),
    "group norm between convolutions": Case(
        lambda a, w, v: F.conv2d(F.group_norm(F.conv2d(a, w), 4), v),
        lambda: (_normal(1, 5, 13, 9), _normal(16, 5, 3, 3), _normal(4, 16, 1, 1)),
    ),
    "group norm of a group norm": Case(
        lambda a, w, b: F.group_norm(F.silu(F.group_norm(a, 1, w, b)), 1), lambda: (_normal(1, 2, 3, 3), _normal(2), _normal(2))
    ),
    "layer norm of a softmax of a norm": Case(lambda a: F.layer_norm(F.layer_norm(a, (57,)).softmax(-1), (57,)), lambda: (_normal(3, 57),)),
    "sum about columns": Case(lambda a: a.sum((0, 2)), lambda: (_normal(133, 5, 4),)),
    "logsumexp about columns": Case(lambda a: a.logsumexp((0, 2)), lambda: (_normal(61, 5, 6, deviation=30.0),)),
    "largest about columns": Case(lambda a: a.amax((1, 3)), lambda: (_normal(3, 41, 5, 4, dtype=torch.bfloat16),)),
    "instance norm": Case(lambda a: F.instance_norm(a), lambda: (_normal(2, 3, 9, 13, mean=5.0),)),
    "batch norm": Case(lambda a: F.batch_norm(a, None, None, training=True).relu(), lambda: (_normal(5, 3, 7, 9, mean=5.0),)),
    "batch norm, channels last": Case(lambda a: F.batch_norm(a, None, None, training=True), lambda: (_channels_last(5, 3, 7, 9),)),
    "softmax": Case(lambda a: a.softmax(-1), lambda: (_normal(5, 133, deviation=30.0),)),
    "softmax of special numbers": Case(lambda a: a.softmax(-1), lambda: (_with(*SPECIAL),)),
    "log-softmax of half": Case(lambda a: a.log_softmax(-1), lambda: (_normal(3, 131, dtype=torch.float16),), 2**-9),
    "log-softmax of special numbers": Case(lambda a: a.log_softmax(-1), lambda: (_with(*SPECIAL),)),
    "softmax of columns": Case(lambda a: a.softmax(0), lambda: (_normal(133, 20),)),
    "logsumexp of special numbers": Case(lambda a: a.logsumexp(-1), lambda: (_with(*SPECIAL),)),
    "logsumexp of infinities": Case(lambda a: a.logsumexp(-1), lambda: (_with(INF, INF),)),
    "logsumexp of two axes": Case(lambda a: a.logsumexp((0, 2)), lambda: (_normal(9, 3, 29, deviation=50.0),)),
    "logsumexp of doubles": Case(lambda a: a.logsumexp(-1), lambda: (_normal(3, 133, deviation=200.0, dtype=torch.float64),), 1e-12),
    "softmax of rows of nothing": Case(lambda a: torch.ops.aten._safe_softmax(a, -1), lambda: (_with(-INF, 1.0),)),
    "cross-entropy from bfloat16": Case(
        lambda a, y: F.cross_entropy(a.float(), y), lambda: (_normal(9, 133, dtype=torch.bfloat16), torch.randint(0, 133, (9,))), 2e-6
    ),
    "largest and its place": Case(lambda a: a.max(-1), lambda: (_ties(4, 133),)),
    "place of the smallest": Case(lambda a: a.argmin(-1), lambda: (_ties(4, 133, dtype=torch.int32),)),
    "place among special numbers": Case(lambda a: (a.argmax(-1), a.argmin(-1)), lambda: (_with(*SPECIAL),)),
    "place over all axes": Case(lambda a: a.argmax(), lambda: (_ties(5, 7, 19),)),
    "place in columns": Case(lambda a: a.argmax(0), lambda: (_ties(133, 20, dtype=torch.uint8),)),
    "place in a slice": Case(lambda a: a[:, 1:].argmax(-1), lambda: (_ties(4, 134),)),
    "sum of columns": Case(lambda a: a.sum(0) * 2, lambda: (_normal(133, 20),)),
    "sum of a slice": Case(lambda a: (a[1:, 3:] * 2).sum(-1), lambda: (_normal(4, 136),)),
    "sum of integers": Case(lambda a: a.sum(-1), lambda: (_ties(4, 133, dtype=torch.int16),)),
    "variance of any size": Case(lambda a: a.var(-1), lambda: (_normal(5, 133, mean=300.0),), symbolic=True),
    "softmax of any size": Case(lambda a: a.softmax(-1), lambda: (_normal(5, 133),), symbolic=True),
    "layer norm of any size": Case(lambda a: F.layer_norm(a, a.shape[1:]), lambda: (_normal(3, 7, 19),), symbolic=True),
}


def failure(name: str, instead: dict[str, Pass], runner: Callable[[Any, list[Tensor]], list[Any]]) -> str:
    """What is wrong with a case that is scheduled with these passes `instead` of others and run by the runner; "" where nothing is."""
    from tests.ops.runners import program_of

    case = CASES[name]
    torch.manual_seed(zlib.crc32(name.encode()))
    inputs = case.make()
    program, rebuild = program_of(case.program, inputs, schedule=True, target="cuda:sm_90", instead=instead, symbolic=case.symbolic)
    got = rebuild(runner(program, list(inputs)))
    eager, want = case.program(*inputs), case.program(*(t.double() if t.is_floating_point() else t for t in inputs))
    several = [(x,) if isinstance(x, Tensor) else tuple(x) for x in (got, eager, want)]
    for ours, theirs, exact in zip(*several, strict=True):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"{ours.dtype} {tuple(ours.shape)}, eager {theirs.dtype} {tuple(theirs.shape)}"
        finite = exact.isfinite() & theirs.isfinite()
        if not torch.equal(ours.double()[~finite].nan_to_num(), theirs.double()[~finite].nan_to_num()):
            return f"{ours} where eager has {theirs}"
        off = (ours.double() - exact.double())[finite].abs()
        largest = exact.double()[finite].abs().max() if finite.any() else torch.tensor(1.0)
        if off.numel() and not off.max() <= case.error * max(largest.item(), 1e-30):
            return f"{off.max().item():.2e} off of {largest.item():.2e}"
    return ""


def main(every: int) -> None:
    from tests.codegen.triton.emulate import run

    failures: dict[str, str] = {}
    ways: list[tuple[str, dict[str, Pass], Tiling | None]] = [
        ("looped", {}, LOOPED),
        ("chunks", IN_CHUNKS, None),
        ("both", IN_CHUNKS, LOOPED),
    ]
    for number, name in enumerate(CASES):
        for way, instead, tiling in ways[number % every :: every]:
            found = failure(name, instead, lambda program, inputs, tiling=tiling: run(program, inputs, tiling))  # type: ignore[misc]
            if found:
                failures[f"{name}, {way}"] = found
    print(json.dumps(failures))


if __name__ == "__main__":
    main(int(sys.argv[1]))
