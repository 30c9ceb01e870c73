"""The op table that every backend shares: `ROWS`, at least 250 of them, over dtypes, shapes and layouts.

Kinds of rows are in `table_*.py`; what a row means is in `rows.py`, what is compared in `check.py`.
"""

from __future__ import annotations

from tests.ops import table_nn, table_pointwise, table_reduce, table_views
from tests.ops.rows import Row, Table


def build() -> tuple[Row, ...]:
    """All rows, in a fixed order."""
    table = Table()
    for part in (table_pointwise, table_reduce, table_views, table_nn):
        part.add_rows(table)
    return tuple(table)


ROWS = build()
BY_ID = {row.id: row for row in ROWS}
if len(BY_ID) != len(ROWS):
    seen: set[str] = set()
    raise ValueError(f"op table: the same id twice: {[r.id for r in ROWS if r.id in seen or seen.add(r.id)]}")  # type: ignore[func-returns-value]
