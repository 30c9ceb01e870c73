"""Patches of torch: each row of the tables (capture/dynamo/patches.py, capture/aten/patches.py) left out, and its own test.

The rows are read off the tables' text, those that the installed torch needs: nothing of torch is imported.
"""

import ast
import importlib.metadata
from collections.abc import Iterator

from tests.mutation.table import ROOT, Mutant

TORCH = ".".join(importlib.metadata.version("torch").split(".")[:2])


def _rows() -> Iterator[Mutant]:
    for path in sorted((ROOT / "capture").rglob("patches.py")):
        text = path.read_text("utf-8")
        tables = [node for node in ast.parse(text).body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple)]
        for row in (row for table in tables for row in table.value.elts if isinstance(row, ast.Call)):  # type: ignore[attr-defined]
            written = ast.get_source_segment(text, row) or ""
            why, test = (ast.literal_eval(argument) for argument in row.args[1:3])
            versions = next((ast.literal_eval(k.value) for k in row.keywords if k.arg == "versions"), (TORCH,))
            if test and TORCH in versions:
                yield Mutant(f"not patched: {why}", path.relative_to(ROOT).as_posix(), f"    {written},\n", "", test)


ROWS = tuple(_rows())
