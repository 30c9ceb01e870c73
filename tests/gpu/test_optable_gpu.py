"""Every row of the op table on the device, through the whole compiler, against eager there and float64; a third of them dynamic too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu.device import DEVICE, poison, row_on_device
from tests.ops.check import expect
from tests.ops.compiled import compiled
from tests.ops.optable import ROWS
from tests.ops.rows import Row
from tests.ops.runners import SEED, batches, compare_batch

pytestmark = pytest.mark.gpu
BATCHES = batches(ROWS, 24)
DYNAMIC = batches([row for row in ROWS if "mutates" not in row.tags][::3], 16)
EAGER_REFUSES = frozenset({"mm/int-i64", "pool2d/indices/int-i64", "pool2d/indices/int-u8", "angle/special-bf16"})
"""Rows that eager itself does not run on a GPU: they judge nobody."""
NO_FAKE = frozenset({"lstm_cell-f32"})
"""Rows that torch's tracer cannot follow on a GPU (torch 2.11: the fake of `_thnn_fused_lstm_cell` fails)."""
OTHER_SUMS = ("chain/patch_embed",)
"""Rows whose convolution is a product here and none in eager: their sums have another order."""

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with torch.no_grad():
        yield tmp_path_factory.mktemp("store")


def _as_on_a_gpu(row: Row) -> Row:
    if DEVICE == "cpu":
        return row
    return replace(row, ulps=4 * row.ulps) if row.id.startswith(OTHER_SUMS) else row


def _failures(rows: Sequence[Row], compile_function: Compile) -> list[str]:
    moved = [_as_on_a_gpu(row_on_device(row)) for row in rows if DEVICE == "cpu" or row.id not in NO_FAKE]
    runnable, refused = [], []
    for row in moved:
        try:
            expect(row, SEED)
            runnable.append(row)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            refused.append(f"eager refuses {row.id}, which is not on the list: {error}")
    poison()
    failures = compare_batch(runnable, compile_function)
    return failures + [line for line in refused if line.split()[2].rstrip(",") not in EAGER_REFUSES and DEVICE != "cpu"]


@pytest.mark.parametrize("rows", BATCHES, ids=[f"{b[0].id}..{b[-1].id}" for b in BATCHES])
def test_rows(rows: tuple[Row, ...], store: Path) -> None:
    failures = _failures(rows, lambda fn: compiled(fn, store))
    assert not failures, "\n" + "\n".join(failures)


@pytest.mark.parametrize("rows", DYNAMIC, ids=[f"{b[0].id}..{b[-1].id}" for b in DYNAMIC])
def test_rows_with_symbolic_sizes(rows: tuple[Row, ...], store: Path) -> None:
    failures = _failures(rows, lambda fn: compiled(fn, store, dynamic=True))
    assert not failures, "\n" + "\n".join(failures)
