"""Every row of the op table through the whole compiler on the CPU: captured, lowered, scheduled, compiled to a shared object, loaded, run.

Rows are compiled in batches, as one function each, since starting the C++ compiler costs most; a batch that disagrees is taken apart.
CI compiles every second row, and interprets all of them (`test_optable.py`); the others run by command, with the slow tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ops.check import poison_allocations
from tests.ops.compiled import compiled
from tests.ops.optable import ROWS
from tests.ops.rows import Row
from tests.ops.runners import batches, compare_batch

BATCHES = [
    pytest.param(rows, id=f"{rows[0].id}..{rows[-1].id}", marks=marks)
    for chosen, marks in ((ROWS[::2], []), (ROWS[1::2], [pytest.mark.slow]))
    for rows in batches(chosen, 24)
]


@pytest.fixture(scope="module")
def compile_function(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Callable[..., Any]], Callable[..., Any]]]:
    store: Path = tmp_path_factory.mktemp("store")
    poison_allocations()
    with torch.no_grad():
        yield lambda fn: compiled(fn, store)
    poison_allocations(False)


@pytest.mark.parametrize("rows", BATCHES)
def test_rows(rows: tuple[Row, ...], compile_function: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    failures = compare_batch(rows, compile_function)
    assert not failures, "\n" + "\n".join(failures)
