"""Names by which lower layers reach upper ones: each resolves, and none stands outside of the register."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

from precast.runtime.common import upward_imports
from precast.runtime.common.upward_imports import UpwardImport

HERE = Path(upward_imports.__file__)
RUNTIME = next(folder for folder in HERE.parents if folder.name == "runtime")
ROWS = [value for value in vars(upward_imports).values() if isinstance(value, UpwardImport)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_resolves(row: UpwardImport) -> None:
    found = row.load()
    assert row.when and (callable(found) if ":" in row.name else found.__name__ == row.name)


def _named(path: Path) -> set[str]:
    """Modules of precast that the file names in strings."""
    constants = {node.value for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Constant)}
    named = {text for text in constants if isinstance(text, str) and re.fullmatch(r"precast(\.\w+)+(:\w+)?", text)}
    specs = {text: importlib.util.find_spec(text.partition(":")[0]) for text in named}
    return {text for text, spec in specs.items() if spec is not None and str(spec.origin).endswith(".py")}  # not the native runtime


def test_the_runtime_names_nothing_above_it_elsewhere() -> None:
    assert len(ROWS) >= 5
    assert _named(HERE) == {row.name for row in ROWS}
    assert {path.name: named for path in RUNTIME.rglob("*.py") if path != HERE and (named := _named(path))} == {}


def test_what_the_native_runtime_imports_is_there() -> None:
    sources = "".join(path.read_text("utf-8") for path in RUNTIME.rglob("*.c"))
    (named,) = re.findall(r'PyImport_ImportModule\("(precast[\w.]*)"\)', sources)
    assert callable(importlib.import_module(named).raise_run_error)
