"""Random graphs against eager, judged in float64: many through lowering, scheduling and the oracle, some through the whole compiler."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from tests.codegen.loader import Loaded
from tests.ops.check import poison_allocations
from tests.ops.compiled import compiled
from tests.ops.random_graphs import Graph
from tests.ops.runners import program_of
from tests.ops.trace import tensors_of

SHAPES = [
    ((4, 6), (6,), (4, 1)),
    ((2, 3, 5), (5, 4), (3, 1)),
    ((7,), (1, 7), ()),
    ((2, 3, 4, 4), (4, 4), (3, 1, 1)),
    ((33,), (3, 11), (2, 1)),
]
instruction = st.tuples(st.integers(0, 7), st.integers(0, 5), st.integers(0, 5), st.integers(0, 127))
graphs = st.lists(instruction, min_size=1, max_size=14).map(lambda found: Graph(tuple(found)))
relaxed = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}


def inputs_of(shapes: int, seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x, y, z = (torch.randn(shape, generator=generator) for shape in SHAPES[shapes])
    if seed % 3 == 0 and x.dim() > 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    return x, y, z, torch.randint(0, 50, (4,), generator=generator)


def compare(graph: Graph, inputs: tuple[torch.Tensor, ...], run: Callable[[Graph, tuple[Any, ...]], tuple[torch.Tensor, ...]]) -> None:
    """At most 8 times eager's own distance from float64, plus 64 units of the largest value."""
    eager = graph(*inputs)
    precise = graph(*(i.double() if i.is_floating_point() else i for i in inputs))
    got = run(graph, tuple(i.clone() for i in inputs))
    assert len(got) == len(eager)
    for e, p, g in zip(eager, precise, got, strict=True):
        assert (g.shape, g.dtype) == (e.shape, e.dtype)
        allowed = 8 * (e.double() - p).abs().max() + 64 * torch.finfo(torch.float32).eps * max(1.0, p.abs().max().item())
        assert (g.double() - p).abs().max() <= allowed


def through_schedule(graph: Graph, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    from precast.lowering.verify.interpret import run

    program, rebuild = program_of(graph, inputs, schedule=True)
    return tuple(rebuild(run(program, tensors_of(inputs))))


UNUSED_SCAN = Graph(((0, 0, 0, 0), (6, 0, 0, 5), (0, 2, 0, 0), (5, 2, 0, 0), (0, 0, 0, 0)))
"""A running sum that nothing reads, of values that a mean reads too: it once went into the mean's kernel, where its axis has no loop."""


@settings(max_examples=120, **relaxed)
@given(graphs, st.integers(0, len(SHAPES) - 1), st.integers(0, 1 << 16))
@example(UNUSED_SCAN, 0, 0)
def test_scheduled(graph: Graph, shapes: int, seed: int) -> None:
    compare(graph, inputs_of(shapes, seed), through_schedule)


def through_code(graph: Graph, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    program, rebuild = program_of(graph, inputs, schedule=True)
    library = compile_program(program, "cpu:native", CodegenOptions(measure=False)).library
    return tuple(rebuild(Loaded(library, len(program.outputs))(*tensors_of(inputs))))


@settings(max_examples=int(os.environ.get("PRECAST_RANDOM_GRAPHS", "40")), **relaxed)
@given(graphs, st.integers(0, len(SHAPES) - 1), st.integers(0, 1 << 16))
def test_generated(graph: Graph, shapes: int, seed: int) -> None:
    """Through the generated code, without capture, which makes it cheap: PRECAST_RANDOM_GRAPHS says how many are drawn."""
    compare(graph, inputs_of(shapes, seed), through_code)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@settings(max_examples=20, **relaxed)
@given(graphs, st.integers(0, len(SHAPES) - 1), st.integers(0, 1 << 16))
def test_compiled(store: Path, graph: Graph, shapes: int, seed: int) -> None:
    """Through capture, code generation and the runtime; fresh memory is filled with nonsense."""

    def run(graph: Graph, inputs: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
        def function(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return graph(x, y, z, index)

        found = compiled(function, store)(*inputs)
        return tuple(found)

    poison_allocations()
    try:
        with torch.no_grad():
            compare(graph, inputs_of(shapes, seed), run)
    finally:
        poison_allocations(False)
