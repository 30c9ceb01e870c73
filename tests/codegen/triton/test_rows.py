"""An optimiser's update as one launch over many rows: what is rendered, and of which programs."""

from __future__ import annotations

from dataclasses import replace

import torch

from precast.capture.update_graph import update_graph
from precast.codegen.triton.render.rows import render_rows
from precast.lowering.analysis.traits import traits_of
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.ir.nodes import Output, Program
from precast.lowering.lower import lower
from precast.lowering.options import LoweringOptions
from precast.lowering.pipeline import schedule

TARGET = "cuda:sm_90"


def updated() -> Program:
    options = LoweringOptions(updates=True)
    graph = update_graph(
        lambda tensors, numbers: {"params": tensors["params"] - tensors["grads"] * numbers["rate"]},
        {"params": torch.bfloat16, "grads": torch.bfloat16},
        {},
        ("rate",),
        "cpu",
        DECOMPOSITIONS,
    )
    return schedule(lower(graph.graph, "update", options, traits_of(TARGET)), TARGET, options, ())


def test_addresses_come_from_a_table_and_whole_blocks_have_no_mask() -> None:
    found = render_rows(updated(), traits_of(TARGET))
    assert found is not None
    assert len(found.buffers) == 2 and len(found.numbers) == 1
    assert [a.name for a in found.kernel.arguments][:3] == ["table", "blocks", "chunk"]
    text = found.kernel.source
    assert text.count("tl.multiple_of") == 2
    whole, rest = text.split("    else:\n", 1)
    assert "tl.store(ptr0 + i0, " in whole and "x_mask)" not in whole
    assert "x_mask)" in rest


def test_a_program_with_results_has_no_such_form() -> None:
    program = updated()
    assert render_rows(replace(program, outputs=(Output(None, 1),)), traits_of(TARGET)) is None
