"""`precast.explain` and the words about graph breaks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch._C._dynamo import eval_frame

import precast


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
