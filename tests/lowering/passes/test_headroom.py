"""The bound on memory: passes that make results early, together or once raise the planned peak by the stated share at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precast.lowering.analysis import headroom
from precast.lowering.analysis.effects import reads, writes
from precast.lowering.analysis.headroom import Headroom, alive_bytes, most_alive
from precast.lowering.ir.nodes import Conv, Program
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import planned, schedule
from precast.lowering.verify.interpret import run
from tests.ops.trace import tensors_of, trace

TARGET = "cuda:sm_90"
WIDTH, DEPTH = 24, 10


def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Small images and weights that are laid out at each call."""
    for w in weights:
        x = F.silu(F.conv2d(x, w, padding=1))
    return x


def scaled(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """A weight that is computed from its rows, of equal shape in each layer."""
    for w in weights:
        x = x @ (w / w.norm(dim=1, keepdim=True)).t()
    return x


def skips(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """What is concatenated in the end was made in the beginning."""
    kept = []
    for w in weights:
        x = F.silu(F.conv2d(x, w, padding=1))
        kept.append(x)
    for part in reversed(kept):
        x = torch.cat([x, part], 1)[:, ::2].sigmoid()
    return x


def images() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, WIDTH, 8, 8), *(torch.randn(WIDTH, WIDTH, 3, 3) / 14 for _ in range(DEPTH))]


def rows() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 64), *(torch.randn(64, 64) for _ in range(DEPTH))]


def scheduled(fn: Callable[..., Any], inputs: list[torch.Tensor], growth: float) -> Program:
    graph, _ = trace(fn, tuple(inputs))
    return schedule(lower(graph, "case"), TARGET, LoweringOptions(memory_growth=growth), check=True)


def peak(program: Program) -> int:
    return int(planned(program, TARGET).workspace_bytes)


@pytest.mark.parametrize(("fn", "made"), [(chain, images), (scaled, rows), (skips, images)])
def test_the_option_bounds_the_planned_peak(fn: Callable[..., Any], made: Callable[[], list[torch.Tensor]], monkeypatch: Any) -> None:
    """Without a bound everything is made in the beginning; with one the peak is that of a program in which nothing is."""
    monkeypatch.setattr(headroom, "UNCOUNTED", 0)
    inputs = made()
    least = peak(scheduled(fn, inputs, 0.0))
    for growth in (0.1, 0.5):
        assert peak(scheduled(fn, inputs, growth)) <= least * (1 + growth) * 1.1, "buffers lie at multiples of 512 bytes"
    program = scheduled(fn, inputs, 1e6)
    assert fn is skips or peak(program) > 1.5 * least
    for one in (program, scheduled(fn, inputs, 0.1)):
        for got, want in zip(run(one, tensors_of(tuple(inputs))), [fn(*inputs)], strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_a_weight_is_laid_out_in_front_of_its_convolution(monkeypatch: Any) -> None:
    monkeypatch.setattr(headroom, "UNCOUNTED", 0)
    steps = scheduled(chain, images(), 0.0).steps
    made = {name: k for k, s in enumerate(steps) for name in writes(s)}
    for k, step in enumerate(steps):
        if isinstance(step, Conv):
            assert k - made[step.weight.buffer] <= 2


def test_what_is_alive() -> None:
    """What the steps have written and what is still to be read, inputs apart; more may be alive where there is room, and is counted."""
    program = scheduled(chain, images(), 0.1)
    size = {b.name: b.dtype.itemsize * torch.Size(b.size).numel() for b in program.buffers}
    found = alive_bytes(program)
    outputs = {o.view.buffer for o in program.outputs if o.view is not None}
    for position, bytes_there in enumerate(found):
        written = {n for s in program.steps[: position + 1] for n in writes(s)}
        wanted = {n for s in program.steps[position:] for n in (*reads(s), *writes(s))} | outputs
        assert bytes_there == sum(size[n] for n in written & wanted)
    room = Headroom(program, 0.0)
    allowed = most_alive(program, 0.0) - max(found)
    last = len(found) - 1
    assert room.earliest(last, allowed) == 0 and room.earliest(last, allowed + max(found) + 1) == last
    room.take(0, last, allowed)
    busiest = found.index(max(found[:last]))
    assert not room.fits(busiest, max(found) - found[busiest] + 1)
