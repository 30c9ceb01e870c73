"""NaN, infinity and numbers beyond integers stand where eager has them: all rows of `values.py`, with sizes as constants and as symbols."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.ops.check import Mismatch, check, copied, expect
from tests.ops.compiled import compiled
from tests.ops.rows import Row
from tests.ops.runners import SEED, batches, compare_batch
from tests.ops.values import as_rows

SIZE = 24


def check_rows(rows: tuple[Row, ...], folder: Path, dynamic: bool) -> None:
    with torch.no_grad():
        failures = compare_batch(rows, lambda fn: compiled(fn, folder, dynamic=dynamic))
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("rows", batches(as_rows(), SIZE), ids=lambda rows: rows[0].id)
def test_values_that_are_no_numbers(rows: tuple[Row, ...], tmp_path: Path) -> None:
    check_rows(rows, tmp_path, dynamic=False)


@pytest.mark.parametrize("rows", batches(as_rows()[::3], SIZE), ids=lambda rows: rows[0].id)
def test_the_same_with_symbolic_sizes(rows: tuple[Row, ...], tmp_path: Path) -> None:
    check_rows(rows, tmp_path, dynamic=True)


def test_each_row_has_what_it_is_about() -> None:
    """No row's inputs are all finite, and a result that lost its NaN is seen."""
    rows = as_rows()
    for row in rows:
        assert any(not t.isfinite().all() for t in row.inputs(SEED) if t.is_floating_point()), row.id
    row = next(r for r in rows if r.id == "values/linear/relu-f32")
    expected = expect(row, SEED)
    with pytest.raises(Mismatch):
        check(row, expected, expected.result.nan_to_num(), copied(expected.inputs))
