"""Device memory of an image network: when weights are copied, and which parts of the workspace are there at one time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precast.lowering.analysis.buffer_bytes import DEVICE_ALIGNMENT
from precast.lowering.analysis.effects import writes
from precast.lowering.analysis.traits import ARCHITECTURES, SM_90
from precast.lowering.ir.nodes import Conv, Kernel, Program
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.passes.memory import workspace_segments
from precast.lowering.passes.memory.memory_plan import plan_memory
from precast.lowering.passes.memory.workspace_segments import in_parts, most_held, planned_peak
from precast.lowering.pipeline import schedule
from precast.lowering.verify.interpret import run
from precast.lowering.verify.verify import verify
from tests.ops.trace import tensors_of, trace

WIDTHS = (16, 32, 64, 128)


def network(x: torch.Tensor, stem: torch.Tensor, *weights: torch.Tensor) -> Any:
    """A stem on the whole image, then stages of half the size and twice the width each: the first activations and the last weights are
    the largest."""
    x = F.max_pool2d(F.relu(F.conv2d(x, stem, stride=2, padding=3)), 3, 2, 1)
    for number, (first, second) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
        y = F.relu(F.conv2d(x, first, stride=1 + (number > 0), padding=1))
        x = F.relu(F.conv2d(y, second, padding=1) + y)
    return x.mean((2, 3))


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    before = (WIDTHS[0], *WIDTHS)
    weights = [torch.randn(c, n, 3, 3) / 20 for c, a in zip(WIDTHS, before, strict=False) for n in (a, c)]
    return [torch.randn(2, 3, 96, 96), torch.randn(WIDTHS[0], 3, 7, 7) / 10, *weights]


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions as for a network a hundred times as large."""
    monkeypatch.setitem(ARCHITECTURES, "sm_90", replace(SM_90, large_bytes=1 << 10, first_bytes=64 << 10))
    for module, name, value in (
        (workspace_segments, "LEAST_BYTES", 1 << 10),
        (workspace_segments, "APART", (128 << 10, 64 << 10)),
    ):
        monkeypatch.setattr(module, name, value)


def scheduled() -> Program:
    """Without a bound on what results made early add to the peak: the groups alone are looked at here."""
    graph, _ = trace(network, tuple(inputs()))
    return schedule(lower(graph, "case"), "cuda:sm_90", LoweringOptions(memory_growth=1e6), check=True)


def copies(program: Program) -> list[int]:
    """The launches that lay weights out, as positions."""
    return [k for k, s in enumerate(program.steps) if isinstance(s, Kernel) and any(w.endswith("_last") for w in writes(s))]


def test_large_weights_are_copied_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one launch more, just before the first convolution that needs one of them; the peak falls by most of what they take."""
    program = scheduled()
    at = copies(program)
    convolutions = [k for k, s in enumerate(program.steps) if isinstance(s, Conv)]
    assert len(at) == 2
    assert at[0] < convolutions[0] < convolutions[3] < at[1]
    after = next(s for s in program.steps[at[1] + 1 :] if isinstance(s, Conv))
    assert after.weight.buffer in writes(program.steps[at[1]])
    for got, want in zip(run(program, tensors_of(tuple(inputs()))), [network(*inputs())], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    owned = {s.out for s in program.steps if isinstance(s, Conv)}
    planned = plan_memory(program, elsewhere=owned, alignment=DEVICE_ALIGNMENT)
    monkeypatch.setitem(ARCHITECTURES, "sm_90", replace(ARCHITECTURES["sm_90"], first_bytes=1 << 30))
    before = plan_memory(scheduled(), elsewhere=owned, alignment=DEVICE_ALIGNMENT)
    assert int(planned.workspace_bytes) < 0.8 * int(before.workspace_bytes)


def test_the_peak_beside_what_libraries_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly more than what is alive at the busiest step, where one workspace lies beside the stem's result."""
    owned = {s.out for s in scheduled().steps if isinstance(s, Conv)}
    program = plan_memory(scheduled(), elsewhere=owned, alignment=DEVICE_ALIGNMENT)
    divided = in_parts(program, owned)
    verify(divided, "in parts")
    assert planned_peak(divided) < 0.9 * planned_peak(program)
    assert int(most_held(divided)) < int(divided.workspace_bytes)
    for got, want in zip(run(divided, tensors_of(tuple(inputs()))), [network(*inputs())], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(workspace_segments, "LEAST_BYTES", 1 << 30)
    assert in_parts(program, owned) is program
    monkeypatch.setitem(ARCHITECTURES, "sm_90", replace(ARCHITECTURES["sm_90"], first_bytes=1 << 30))
    assert planned_peak(divided) < 0.7 * planned_peak(plan_memory(scheduled(), elsewhere=owned, alignment=DEVICE_ALIGNMENT))


def consumed(*kept: torch.Tensor) -> torch.Tensor:
    """Takes up what was kept one by one with small intermediates, and ends with large ones."""
    small = kept[0][:16]
    for item in kept:
        small = (small @ item).relu()
    large = small.t() @ small
    larger = (large @ large).tanh()
    return (larger @ large).tanh().sum(0)


def test_what_comes_late_takes_no_memory_while_much_is_kept() -> None:
    """A backward graph gives back what was kept for it: its own large blocks are allocated when that is gone."""
    kept = tuple(torch.randn(512, 512) / 20 for _ in range(8))
    graph, _ = trace(consumed, kept)
    program = plan_memory(schedule(lower(graph, "case"), "cuda:sm_90", check=True), alignment=DEVICE_ALIGNMENT)
    divided = in_parts(program, (), frees_inputs=True)
    verify(divided, "in parts")
    peaks = [planned_peak(p, frees_inputs=True) for p in (program, divided)]
    assert peaks[1] < 0.85 * peaks[0] and peaks[1] < 8.3 * (1 << 20) < peaks[0]
    assert in_parts(program, ()) is program, "where inputs stay, dividing the workspace saves nothing"
    for got, want in zip(run(divided, tensors_of(kept)), [consumed(*kept)], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
