"""The table of mutants does not rot: each row applies to today's sources once, its tests exist, and the runner tells dead from alive."""

from __future__ import annotations

import ast
import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.process import Outcome
from tests.mutation.run import BROKEN, KILLED, SURVIVED, UNFIT, judge
from tests.mutation.table import ROOT, DoesNotApply, Mutant, areas, mutated, table

ROWS = table()


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """The functions of a file of tests, those of its classes as `Class::name`."""
    tree = ast.parse((ROOT / file).read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    inner = {f"{c.name}::{f.name}" for c in classes for f in c.body if isinstance(f, ast.FunctionDef)}
    return frozenset(inner | {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)})


@pytest.mark.parametrize("area", areas())
def test_every_row_applies_and_names_tests_that_exist(area: str) -> None:
    rows = [row for row in ROWS if row.area == area]
    problems = []
    for row in rows:
        try:
            mutated(row, (ROOT / row.file).read_text())
        except (DoesNotApply, OSError) as error:
            problems.append(str(error))
        for node in row.nodes:
            file, _, function = node.partition("::")
            if not (ROOT / file).is_file():
                problems.append(f"{row.name!r}: there is no {file}")
            elif function and function.partition("[")[0] not in names_in(file):
                problems.append(f"{row.name!r}: {file} has no {function}")
    assert rows and not problems, "\n".join(problems)


def test_the_table_is_long_enough_and_says_each_thing_once() -> None:
    names = [(row.area, row.name) for row in ROWS]
    edits = [(row.file, row.old, row.new) for row in ROWS]
    assert len(set(names)) == len(names) and len(set(edits)) == len(edits)
    judged = [row for row in ROWS if row.equivalent]
    assert len(ROWS) - len(judged) >= 120 and all(len(row.equivalent) > 20 for row in judged)
    assert all(row.nodes for row in ROWS)


def test_the_page_lists_what_is_judged_equivalent() -> None:
    page = (ROOT / "tests/mutation/README.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`" in line and ": " in line and "(`" in line]
    assert rows == [f"| {row.area}: {row.name} (`{row.file}`) | {row.equivalent} |" for row in ROWS if row.equivalent]


ROW = Mutant("it", "a.py", "x = 1", "x = 2", "tests/a.py")


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [("y = 1\n", "x = 1", "x = 2"), ("x = 1\nx = 1\n", "x = 1", "x = 2"), ("x = 1\n", "x = 1", "x  =  1"), ("x = 1\n", "x = 1", "x = (")],
    ids=["absent", "twice", "the same", "no Python"],
)
def test_rows_that_do_not_apply(text: str, old: str, new: str) -> None:
    with pytest.raises(DoesNotApply):
        mutated(Mutant("it", "a.py", old, new, "tests/a.py"), text)
    assert mutated(ROW, "x = 1\n") == "x = 2\n"


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome(0, passed=["t::a"]), SURVIVED),
        (Outcome(0, skipped=["t::a"]), UNFIT),
        (Outcome(1, failed={"t::a": "no"}), KILLED),
        (Outcome(2, failed={"t.py": "ImportError"}), BROKEN),
        (Outcome(1, failed={"t::a": "the native runtime cannot be built, …"}), BROKEN),
        (Outcome(-11, running="t::a"), KILLED),
        (Outcome(None, running="t::a"), KILLED),
        (Outcome(4), BROKEN),
        (Outcome(70), BROKEN),
    ],
    ids=["passes", "skipped", "fails", "does not collect", "no C", "crash", "hang", "usage", "the runner's own error"],
)
def test_verdicts(outcome: Outcome, verdict: str) -> None:
    assert judge(ROW, outcome).verdict == verdict


def test_a_run_tells_dead_from_alive_and_leaves_the_checkout_alone(tmp_path: Path) -> None:
    """Two rows by the real runner: one that its test kills, and one that is judged equivalent, which survives."""
    killed = "a device other than the first one's is missed"
    alive = "bitwise and is logical"
    files = {row.file: (ROOT / row.file).read_bytes() for row in ROWS if row.name in (killed, alive)}
    command = [sys.executable, "-m", "tests.mutation.run", "--json", "--jobs", "1", "--name", killed, "--name", alive]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = {item["name"]: item for item in json.loads(done.stdout)["mutants"]}
    assert found[killed]["verdict"] == KILLED and "::test_the_first_tensor_on_another_device" in found[killed]["by"]
    assert found[alive]["verdict"] == SURVIVED
    assert {file: (ROOT / file).read_bytes() for file in files} == files
    assert not list(tmp_path.glob("precast-*")), "the copies are gone"
