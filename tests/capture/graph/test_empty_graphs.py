"""Graphs of which nothing is left: every output is an input, or a size that the bytecode reads itself."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from precast.capture import CaptureOptions, capture
from precast.capture.dynamo.dynamic_shapes import Dynamic
from tests.capture.harness import run_frame


def given_back(x: torch.Tensor) -> Any:
    return x, x.shape


def test_whoever_traces_is_shown_a_graph_that_computes_nothing() -> None:
    shown: list[torch.fx.GraphModule] = []
    x = torch.randn(5, 3)
    with torch.no_grad():
        frame = capture(given_back, (x,), options=CaptureOptions(dynamic=Dynamic("yes"), trace=shown.append))
        result, size = run_frame(frame, given_back, (x,), {})
    assert len(shown) == 1 and frame.uncacheable == ()
    assert result is x and size == x.shape
