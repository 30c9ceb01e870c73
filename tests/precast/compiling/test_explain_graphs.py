"""`precast.explain` and the words about graph breaks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._dynamo import eval_frame

import precast
from precast.runtime.common.supported_torch import is_before


def told(x: torch.Tensor) -> torch.Tensor:
    print("in between")
    return x * 2


def broken(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    x = told(x)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_graphs_breaks_and_ops() -> None:
    a, b = torch.randn(5), torch.rand(5)
    report = precast.explain(broken)(a, b)
    torch.testing.assert_close(report.value, broken(a, b))
    counted = torch._dynamo.explain(broken)(a, b)
    assert len(report.graphs) == counted.graph_count
    assert report.ops == sum(node.op.startswith("call") for graph in counted.graphs for node in graph.graph.nodes)
    assert [frame.ops for frame in report.graphs][0] == ("abs", "add", "truediv")
    assert all(frame.guards for frame in report.frames)
    assert "broken" in report.breaks[0].stack[0] and "told(x)" in report.breaks[0].stack[0]
    assert report.breaks[0].stack[-1].endswith('in told: print("in between")')
    assert "print" in report.breaks[0].reason and report.breaks[0].hint
    assert "depends on the value of a tensor" in report.breaks[-1].reason
    text = str(report)
    assert text.startswith("4 graphs, 3 graph breaks, 7 ops") and "resumed at line" in text and f"{__file__}:" in text


def test_the_hint_for_a_number_taken_out_of_a_tensor_works() -> None:
    def taken(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    report = precast.explain(taken)(torch.ones(3))
    assert [b.hint for b in report.breaks] == ['set options={"capture_scalar_outputs": True}']
    assert len(precast.explain(precast.compile(taken, options={"capture_scalar_outputs": True}))(torch.ones(3)).graphs) == 1


def test_what_is_not_compiled_itself() -> None:
    def loop(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = told(x)
        return x

    report = precast.explain(precast.compile(loop))(torch.randn(3))
    assert [frame.name.rpartition(".")[2] for frame in report.frames if frame.refused] == ["loop"]
    assert len(report.graphs) == 1, "the function that it calls"
    assert not eval_frame._debug_get_precompile_entries(told.__code__), "nothing stays behind"


def test_one_graph() -> None:
    report = precast.explain(torch.nn.Linear(3, 4).eval())(torch.randn(2, 3))
    assert len(report.graphs) == 1 and not report.breaks


def test_fullgraph_names_line_reason_and_hint(tmp_path: Path) -> None:
    compiled = precast.compile(broken, fullgraph=True, store=tmp_path)
    line = told.__code__.co_firstlineno + 1
    with pytest.raises(precast.PrecastError) as error:
        compiled(torch.randn(5), torch.randn(5))
    text = str(error.value)
    assert f"{__file__}:{line}" in text and "print" in text and "equivalent alternative" in text
    with pytest.raises(precast.PrecastError, match="data-dependent|value of a tensor|Data-dependent"):
        precast.compile(lambda b: b if b.sum() < 0 else b + 1, fullgraph=True, store=tmp_path)(torch.randn(3))


def rows_at(x: torch.Tensor, mask: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[mask][i]


def row_at(x: torch.Tensor, mask: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x[i]


@pytest.mark.parametrize("function", [rows_at, row_at])
def test_an_index_by_a_tensor_that_cannot_stay_in_the_graph(function: Any, tmp_path: Path) -> None:
    """torch raises its GuardOnDataDependentSymNode from within AOTAutograd; here the user's line, the reason and a hint that holds."""
    args = torch.randn(6, 4), torch.tensor([True] * 5 + [False]), torch.tensor(-2)
    captured = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    line = inspect.getsourcelines(function)[1] + 1
    for dynamic in (None, True):
        compiled = precast.compile(function, store=tmp_path, fullgraph=True, dynamic=dynamic, options=captured)
        if not is_before(torch.__version__, "2.15"):  # such an index stays in the graph
            with torch.no_grad():
                assert torch.equal(compiled(*args), function(*args))
            continue
        with torch.no_grad(), pytest.raises(precast.PrecastError) as caught:
            compiled(*args)
        text = str(caught.value)
        assert "cannot be compiled as one graph" in text and f"{Path(__file__).name}:{line}" in text
        assert "needs a size or a place" in text and "depends on the data of a tensor" in text and "x[i.item()]" in text

    def with_a_number(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i.item()] * 2

    with torch.no_grad():
        compiled = precast.compile(with_a_number, store=tmp_path, fullgraph=True, options=captured)
        assert torch.equal(compiled(args[0], args[2]), args[0][-2] * 2)
        free = precast.compile(function, store=tmp_path)
        assert torch.equal(free(*args), function(*args))
