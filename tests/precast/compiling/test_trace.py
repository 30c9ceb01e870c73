"""Tracing: one folder per compile, one numbered file per stage, and a drawing whose boxes and lines are where they should be."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast import torch_backend
from precast.artifact_store import Store
from precast.compiling import build_graph
from precast.lowering.ir.nodes import Program
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import planned
from precast.report.diagram import diagram
from precast.report.graph_layout import Box, Edge, layout

STAGES = [
    "01_dynamo_graph.py",
    "02_bytecode.txt",
    "03_guards.txt",
    "04_aten_graph.py",
    "05_lowered_ir.txt",
    "06_scheduled_ir.txt",
    "07_kernels.cpp",
    "08_host_program.py",
    "09_choices.json",
]
SVG = "{http://www.w3.org/2000/svg}"


class Block(torch.nn.Module):
    """A small transformer block: two residual connections around attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.before, self.after = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 16)).transpose(1, 2) for t in self.qkv(self.before(x)).chunk(3, -1))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(torch.nn.functional.gelu(self.up(self.after(x))))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_one_folder_per_compile_one_file_per_stage(tmp_path: Path, store: Store) -> None:
    traced = tmp_path / "traced"

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(torch.relu(x), weight) * 2

    weight = torch.randn(16, 8)
    compiled = precast.compile(function, options={"trace.enabled": True, "trace.dir": str(traced)}, store=store, name="net", dynamic=False)
    for rows in (4, 4, 6):
        compiled(torch.randn(rows, 8))
    assert files(traced) == ["net.000", "net.001"]
    assert [files(traced / name) for name in files(traced)] == [STAGES, STAGES]
    text = {name: (traced / "net.000" / name).read_text() for name in STAGES}
    assert "linear" in text["01_dynamo_graph.py"] and "aten" in text["04_aten_graph.py"]
    assert "LOAD_" in text["02_bytecode.txt"]
    assert re.search(r"^x\ttensor\t.*float32", text["03_guards.txt"], re.M)
    assert "program net(" in text["05_lowered_ir.txt"] and "gemm(" in text["06_scheduled_ir.txt"]
    assert "kernel0" in text["07_kernels.cpp"] and "kernel0" in text["08_host_program.py"]
    json.loads(text["09_choices.json"])
    before = files(traced)
    fresh = precast.compile(function, options={"trace.enabled": True, "trace.dir": str(traced)}, store=store, name="net", dynamic=False)
    fresh(torch.randn(4, 8))
    assert files(traced) == before, "a hit compiles nothing, and the option is not in the key"


def test_by_environment_in_the_default_folder_and_through_torchs_door(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.randn(4)
    precast.compile(lambda x: x + 1, options={"trace.enabled": True}, store=store, name="first")(x)
    assert files(tmp_path / "precast_trace") == ["first.000"]
    monkeypatch.setenv("PRECAST_TRACE", str(tmp_path / "by_environment"))
    precast.compile(lambda x: x + 2, store=store, name="second")(x)
    torch.compile(lambda x: x + 3, backend=lambda gm, inputs: torch_backend.precast(gm, inputs, store=store))(x)
    first, door = files(tmp_path / "by_environment")
    assert first == "second.000" and door.startswith("torch.compile")
    assert len(files(tmp_path / "by_environment" / door)) == len(STAGES) - 2, "torch keeps bytecode and guards to itself"


def test_a_refusal_is_the_last_file_and_an_unwritable_folder_stops_nothing(tmp_path: Path, store: Store) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        print("a break")
        return x + 1

    options = {"trace.enabled": True, "trace.dir": str(tmp_path / "t")}
    with pytest.raises(precast.PrecastError):
        precast.compile(broken, fullgraph=True, options=options, store=store, name="broken")(torch.ones(2))
    assert files(tmp_path / "t" / "broken.000")[-1].endswith("_refused.txt")
    (tmp_path / "file").write_text("")
    x = torch.randn(3)
    compiled = precast.compile(lambda x: x * 5, options={**options, "trace.dir": str(tmp_path / "file" / "in")}, store=store)
    torch.testing.assert_close(compiled(x), x * 5)


def scheduled(model: torch.nn.Module, store: Store, *inputs: torch.Tensor) -> tuple[Program, list[str]]:
    """The scheduled program of one call, and its weights."""
    found = []
    real = build_graph.schedule

    def kept(lowered: Program, target: str, options: LoweringOptions, weights: tuple[str, ...], **more: Any) -> Program:
        program = real(lowered, target, options, weights, **more)
        found.append((planned(program, target), [*weights]))
        return program

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build_graph, "schedule", kept)
        precast.compile(model.eval(), store=store, dynamic=False)(*inputs)
    return found[-1]  # type: ignore[return-value]


def rectangles(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of each box's body."""
    found = []
    for group in root.iter(f"{SVG}g"):
        if group.find(f"{SVG}title") is not None:
            body = group.findall(f"{SVG}rect")[-1]
            x, y, width, height = (float(body.get(name, "")) for name in ("x", "y", "width", "height"))
            found.append((x, y, x + width, y + height))
    return found


def test_the_diagram_shows_every_step_and_nothing_overlaps(store: Store) -> None:
    program, weights = scheduled(Block(), store, torch.randn(2, 8, 64))
    text = diagram(program, weights)
    root = ElementTree.fromstring(text)
    labels = [element.text or "" for element in root.iter(f"{SVG}text")]
    boxes = rectangles(root)
    drawn = len(program.steps) + 2
    assert len(boxes) == drawn, "one box a step, one input, one output"
    assert "attention" in labels and labels.count("matrix product") == 4
    assert any("+ bias, gelu" in label for label in labels) and any("+ residual" in label for label in labels)
    assert any(re.fullmatch(r"weight in\d+ f32\[64,192\] 49.2 kB", label) or "f32[192,64]" in label for label in labels)
    for one, other in itertools.combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert all(0 <= x0 and x1 <= width and 0 <= y0 and y1 <= height for x0, y0, x1, y1 in boxes)
    assert text == diagram(program, weights), "the same program gives the same drawing"


def test_the_diagram_is_a_file_of_the_trace(tmp_path: Path, store: Store) -> None:
    options = {"trace.graph_diagram": True, "trace.dir": str(tmp_path / "t")}
    precast.compile(lambda x: torch.softmax(x, -1), options=options, store=store, name="net")(torch.randn(3, 4))
    (svg,) = [name for name in files(tmp_path / "t" / "net.000") if name.endswith(".svg")]
    assert svg == "07_graph.svg"
    ElementTree.fromstring((tmp_path / "t" / "net.000" / svg).read_text())


def test_layers_go_down_and_rows_do_not_overlap() -> None:
    """A ladder with long edges: every edge leads downwards, and waypoints keep their lines clear of boxes."""
    boxes = [Box(f"b{i}", 40.0 + 13 * (i % 5), 30.0) for i in range(24)]
    edges = [Edge(f"b{i}", f"b{j}", f"k{i}") for i in range(24) for j in (i + 1, i + 2, i + 7) if j < 24]
    drawing = layout(boxes, edges)
    for edge in edges:
        assert drawing.boxes[edge.source].row < drawing.boxes[edge.target].row
        assert drawing.boxes[edge.source].y < drawing.boxes[edge.target].y
    for row in drawing.rows:
        for left, right in itertools.pairwise(row):
            assert left.x + left.width / 2 < right.x - right.width / 2
    assert all(box.x - box.width / 2 >= -1e-6 and box.x + box.width / 2 <= drawing.width + 1e-6 for box in drawing.boxes.values())
