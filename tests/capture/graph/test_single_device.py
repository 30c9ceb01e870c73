"""Graphs that work on a GPU and on the CPU become graphs that compute on the GPU. The GPU is one that is not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from precast.capture import CapturedFrame, CaptureRefused, capture
from precast.capture.fake_device import StandIns, without_device

X, SCALAR, ROW = "cuda:0", (), (4,)
"""What a call is given: a tensor on the GPU, CPU tensors of these sizes."""


def captured(function: Callable[..., Any], *given: Any) -> CapturedFrame:
    with FakeTensorMode(), without_device():
        placed = [torch.ones(4, device=item) if isinstance(item, str) else torch.ones(item) for item in given]
    stood = StandIns(keep_cpu=True).of(*placed)
    with torch.no_grad(), without_device():
        return capture(function, stood)


def calls(frame: CapturedFrame) -> list[tuple[str, str]]:
    """(operator, device of its result) of each call in the graph."""
    assert frame.graph is not None
    nodes = [node for node in frame.graph.graph.nodes if node.op == "call_function"]
    return [(str(node.target).removeprefix("aten."), node.meta["val"].device.type) for node in nodes]


def scaled(x: Any, s: Any) -> Any:
    return x * s


def half_on_the_cpu(x: Any, row: Any) -> Any:
    return x + (row * 2).to(x.device)


def leaves(x: Any) -> Any:
    return x.sin(), x.cpu() + 1


def table(x: Any) -> Any:
    return x + torch.arange(4).cos().to(x.device) * torch.tensor(2.0)


def passes_by(x: Any, row: Any) -> Any:
    return x + 1, row, row.view(2, 2)


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[tuple[str, str]]]] = {
    "scalar": (scaled, (X, SCALAR), [("mul.Tensor", "cuda")]),
    "row": (
        half_on_the_cpu,
        (X, ROW),
        [("_to_copy.default", "cuda"), ("mul.Tensor", "cuda"), ("_to_copy.default", "cuda"), ("add.Tensor", "cuda")],
    ),
    "leaves": (leaves, (X,), [("sin.default", "cuda"), ("_to_copy.default", "cuda"), ("add.Tensor", "cuda"), ("_to_copy.default", "cpu")]),
    "passes by": (passes_by, (X, ROW), [("add.Tensor", "cuda")]),
}


@pytest.mark.parametrize("name", CASES)
def test_calls(name: str) -> None:
    function, given, expected = CASES[name]
    assert calls(captured(function, *given)) == expected


def test_what_is_made_on_the_way_is_made_on_the_gpu() -> None:
    frame = captured(table, X)
    assert {device for _, device in calls(frame)} == {"cuda"}
    assert frame.code is not None and [tensor.device for tensor in frame.code.tensors] == ["cuda"]
    (made,) = [node for node in frame.graph.graph.nodes if "arange" in str(node.target)]  # type: ignore[union-attr]
    assert made.kwargs["device"] == torch.device(X)


def writes(x: Any, row: Any) -> Any:
    row.copy_(x)
    return x * 2


def draws(x: Any) -> Any:
    return x + torch.rand(4).to(x.device)


@pytest.mark.parametrize(
    ("function", "given", "reason"), [(writes, (X, ROW), "writes a tensor"), (draws, (X,), "random numbers on the CPU")]
)
def test_what_has_to_stay_on_the_cpu_is_refused(function: Callable[..., Any], given: Any, reason: str) -> None:
    with pytest.raises(CaptureRefused, match=reason):
        captured(function, *given)


def test_a_graph_on_the_cpu_stays_there() -> None:
    with torch.no_grad():
        assert {device for _, device in calls(capture(table, (torch.ones(4),)))} == {"cpu"}
