"""The table of mutants: one small wrong edit of the sources each, with the tests that must notice it.

A row is data. `old` stands in `file` exactly once (a neighbouring line is part of it where one line would not be enough), `new` takes its
place, and at least one of `tests` must then fail. Rows are kept by area, one module of `tests/mutation/rows` each.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """One wrong edit. `name` says what is wrong; `tests` are pytest node ids (files, functions, single cases), divided by blanks."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    equivalent: str = ""
    """Why no test can notice it: no input gives another value, state or message. Such a row is run only when named."""
    area: str = ""

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.tests.split())


class DoesNotApply(ValueError):
    """The sources have changed below this row: its old text is not there exactly once, or the new text is no program."""


def mutated(mutant: Mutant, text: str) -> str:
    """`text` of the mutant's file with the edit made. Raises DoesNotApply."""
    count = text.count(mutant.old)
    if count != 1:
        raise DoesNotApply(f"{mutant.area}: {mutant.name!r}: its old text stands {count} times in {mutant.file}, and must stand once")
    changed = text.replace(mutant.old, mutant.new)
    if mutant.file.endswith(".py"):
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
        except SyntaxError as error:
            raise DoesNotApply(f"{mutant.area}: {mutant.name!r}: {mutant.file} is no Python with the new text: {error}") from error
        if same:
            raise DoesNotApply(f"{mutant.area}: {mutant.name!r}: the new text means what the old one means")
    return changed


def areas() -> tuple[str, ...]:
    """The names of the areas: the modules of `rows`."""
    return tuple(sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent / "rows")])))


def table(wanted: tuple[str, ...] = ()) -> tuple[Mutant, ...]:
    """All rows of the areas `wanted`, or of all."""
    rows = []
    for area in wanted or areas():
        module = importlib.import_module(f"tests.mutation.rows.{area}")
        rows += [Mutant(row.name, row.file, row.old, row.new, row.tests, row.equivalent, area) for row in module.ROWS]
    return tuple(rows)
