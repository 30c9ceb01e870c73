"""Every row of the op table through lowering alone, and through lowering and scheduling, run by the oracle."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from precast.capture import CaptureOptions, capture
from precast.lowering.build.registry import LOWERINGS, overloads
from precast.lowering.decompositions import DECOMPOSITIONS
from precast.lowering.lower import lower
from precast.lowering.pipeline import schedule
from precast.lowering.verify.interpret import run
from tests.ops.check import Mismatch, check, copied, expect
from tests.ops.externs import ALLOWED, BARE_TRACE, check_externs, name_of
from tests.ops.optable import BY_ID, ROWS
from tests.ops.rows import Row
from tests.ops.runners import SEED, compare_row, interpreted, program_of
from tests.ops.trace import tensors_of

ids = [row.id for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_lowered(row: Row) -> None:
    compare_row(row, interpreted)


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_scheduled(row: Row) -> None:
    """The numbers; and that the row is our own code, but for the operators that `externs.py` allows it."""

    def scheduled(row: Row, inputs: tuple[Any, ...]) -> Any:
        program, rebuild = program_of(row.fn, inputs, schedule=True)
        check_externs(row, program)
        return rebuild(run(program, tensors_of(inputs)))

    compare_row(row, scheduled)


def captured_program(row: Row) -> Any:
    """The scheduled program of the graph that precast really captures."""
    with torch.no_grad():
        frame = capture(row.fn, row.inputs(SEED), options=CaptureOptions(decompositions=DECOMPOSITIONS))
        assert frame.graph is not None
        return schedule(lower(frame.graph, "row"), "cpu:x86-64-v3")


@pytest.mark.parametrize("row_id", [row.id for row in ROWS if name_of(row) in BARE_TRACE])
def test_capture_gives_operators_that_are_lowered(row_id: str) -> None:
    check_externs(BY_ID[row_id], captured_program(BY_ID[row_id]), captured=True)


def test_the_list_of_externs_names_rows() -> None:
    assert set(ALLOWED) <= {name_of(row) for row in ROWS}
    assert {name_of(row) for row in ROWS if "extern" in row.tags} <= set(ALLOWED)


@pytest.mark.parametrize(
    "row_id, operator",
    [
        ("pool2d/max-f32", "max_pool2d_with_indices"),
        ("pool2d/adaptive_max-f32", "adaptive_max_pool2d"),
        ("pool2d/avg-f32", "avg_pool2d"),
        ("upsample/nearest-f32", "upsample_nearest2d"),
        ("scatter-f32", "scatter.src"),
        ("scatter_add-i64", "scatter_add"),
        ("pad/reflect-f32", "_unsafe_index.Tensor"),
        ("cumprod-f32", "cumprod"),
        ("erf/c-f32", "erf"),
        ("flip-f32", "flip"),
    ],
)
def test_a_lost_lowering_is_seen(row_id: str, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its rule an operator is left to torch: the numbers stay right, and the row fails all the same."""
    (overload,) = overloads(operator)
    monkeypatch.delitem(LOWERINGS, overload)
    with pytest.raises(AssertionError, match=rf"torch is called for .*aten::{re.escape(operator)}"):
        test_scheduled(BY_ID[row_id])


@pytest.mark.parametrize("operator", ["adaptive_max_pool2d", "max_pool2d_with_indices"])
def test_a_lowering_lost_to_capture_is_seen(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (overload,) = overloads(operator)
    monkeypatch.delitem(LOWERINGS, overload)
    with pytest.raises(AssertionError, match=f"aten::{operator}"):
        test_capture_gives_operators_that_are_lowered("pool1d/all-f32")


def test_table_is_large_enough() -> None:
    """The issue asks for 250 rows over the dtypes and layouts."""
    assert len(ROWS) >= 250
    assert {str(row.dtype).removeprefix("torch.") for row in ROWS} >= {
        "float32",
        "float64",
        "bfloat16",
        "float16",
        "int64",
        "int32",
        "uint8",
        "bool",
    }
    assert sum("triton" in row.tags for row in ROWS) >= 100


@pytest.mark.parametrize(
    "row_id, damage",
    [
        ("add/same-f32", lambda r: r + 1e-4),
        ("softmax/-1-f32", lambda r: r * (1 + 1e-5)),
        ("mul/int-i64", lambda r: r + 1),
        ("exp/special-f32", lambda r: r.nan_to_num()),
        ("neg/c-f32", lambda r: r.double()),
        ("neg/c-f32", lambda r: r.t().contiguous().t()),
        ("view/input_alias-f32", lambda r: r.clone()),
        ("sum/last-f32", lambda r: r[None]),
        ("layer_norm-bf16", lambda r: r * 1.03),
    ],
)
def test_the_checker_sees_damage(row_id: str, damage: object) -> None:
    """Each kind of wrong result is refused: values, NaN, dtype, strides, aliasing, shape."""
    row = BY_ID[row_id]
    expected = expect(row, SEED)
    inputs = copied(expected.inputs)
    good = row.fn(*inputs)
    check(row, expected, good, inputs)
    with pytest.raises(Mismatch):
        check(row, expected, damage(good), inputs)  # type: ignore[operator]


def test_the_checker_sees_a_mutated_input() -> None:
    row = BY_ID["add/same-f32"]
    expected = expect(row, SEED)
    inputs = copied(expected.inputs)
    result = row.fn(*inputs)
    inputs[0].add_(1)
    with pytest.raises(Mismatch, match="leaves alone"):
        check(row, expected, result, inputs)
