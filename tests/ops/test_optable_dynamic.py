"""The op table with every size symbolic: traced once, run at the row's own sizes and at others, against eager.

A third of the rows runs through lowering and scheduling by the oracle, a fortieth through the compiler: another part in each week of the
year.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from precast.codegen.common.options import CodegenOptions
from tests.ops.check import copied
from tests.ops.optable import ROWS
from tests.ops.resize import other_values, resized, shape_env_of
from tests.ops.rows import Row
from tests.ops.runners import SEED
from tests.ops.symbolic import agree, trace_symbolic

PARTS = 40
PART = int(os.environ.get("PRECAST_TEST_PART", datetime.date.today().isocalendar()[1])) % PARTS
TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 8e-3}

rows = [row for row in ROWS if "mutates" not in row.tags and row.id != "gelu/special-f32"]  # eager's NaN at -inf is not float64's
LOOSE = {"to/roundtrip-f32": 4e-2}
"""A result of the first dtype that went through a half type."""


def flattened(row: Row, inputs: tuple[Any, ...]) -> tuple[Callable[..., list[torch.Tensor]], list[torch.Tensor]]:
    """The row's function over its tensors alone, giving tensors."""
    leaves, spec = tree_flatten(inputs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        return [o for o in tree_flatten(row.fn(*tree_unflatten(given, spec)))[0] if isinstance(o, torch.Tensor)]

    return flat, [leaves[p] for p in places]


def run_row(row: Row, *, compiled: bool) -> str:
    """Runs one row; "static" or "fixed" where its trace has no sizes, or none that can change."""
    from precast.codegen import compile_program
    from precast.lowering.lower import lower
    from precast.lowering.pipeline import schedule
    from precast.lowering.verify.interpret import run
    from tests.codegen.loader import Loaded

    fn, tensors = flattened(row, row.inputs(SEED))
    try:
        graph = trace_symbolic(fn, tensors)
    except AssertionError:
        return "static"  # the tracer's own refusal: sparse and such
    env = shape_env_of(graph)
    if env is None:
        return "static"
    others = other_values(env)
    sets = [tensors] + ([resized(graph, tensors, others, torch.Generator().manual_seed(SEED))] if others is not None else [])
    program = schedule(lower(graph, "row"), "cpu:x86-64-v3", check=True)
    if compiled:
        found: Any = Loaded(compile_program(program, "cpu:native", CodegenOptions(measure=False)).library, len(program.outputs))
    else:

        def found(*given: torch.Tensor) -> Any:
            return run(program, given)

    for number, given in enumerate(sets):
        try:
            want = fn(*copied(given))
        except RuntimeError:
            assert number, "eager refuses the row's own inputs"
            return "fixed"  # sizes that eager does not take together, though no guard says so
        got = found(*given)
        if "random" in row.tags:
            continue
        for w, g in zip(want, got, strict=True):
            agree(w, [g], LOOSE.get(row.id) or TOLERANCE.get(w.dtype, 5e-4), strides="free_strides" not in row.tags)
    return "resized" if others is not None else "fixed"


@pytest.mark.parametrize("start", range(0, len(rows), 120))
def test_scheduled(start: int) -> None:
    failures, kinds = [], []
    for row in rows[start + PART % 3 : start + 120 : 3]:
        try:
            kinds.append(run_row(row, compiled=False))
        except Exception as error:  # noqa: BLE001  (collected, and reported together)
            failures.append(f"{row.id} (PRECAST_TEST_SEED={SEED}): {type(error).__name__}: {str(error)[:400]}")
    assert not failures, "\n".join(failures)
    assert kinds.count("resized") >= 0.6 * len(kinds)


@pytest.mark.parametrize("row", rows[PART::PARTS], ids=lambda row: row.id)
def test_compiled(row: Row) -> None:
    try:
        run_row(row, compiled=True)
    except Exception as error:
        error.add_note(f"row {row.id}; repeat with PRECAST_TEST_SEED={SEED} PRECAST_TEST_PART={PART}")
        raise
