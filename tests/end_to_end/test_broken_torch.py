"""A fact about torch that does not hold: calls run and give eager's answers, one warning names it, and so does the doctor."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precast.capture import patch_rows
from precast.torch_facts.fact import EAGER, Fact
from precast.torch_facts.table import facts

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
Case = tuple[str, str, str, bool]
"""Kind and name as `tests/end_to_end/broken_torch.py` takes them, what is to be named, whether calls run eagerly."""
ELSEWHERE = tuple(f"{table.name}: " for table in patch_rows.ELSEWHERE)
"""How the names of facts begin that only targets need which are not here."""


def cases() -> Iterator[Case]:
    """One or more for each fact whose check runs none of torch's code, and one for the layout of tensors."""
    for fact in facts():
        if not fact.deep:
            yield from _cases(fact)
    yield "layout", "", "where tensors keep what", False


def unnoticed() -> set[str]:
    """Names of cases of which `precast.compile` for a CPU must notice nothing: only the doctor tells of them."""
    found: set[str] = set()
    for fact in facts():
        if not fact.deep and fact.group == "patches" and fact.name.startswith(ELSEWHERE):
            found.update(fact.names)
        elif fact.group == "calls" and fact.needed_for == "graphs for a GPU":
            found.add(fact.name)
        elif fact.group == "adapters" and not fact.stops:
            found.add(fact.name.rpartition("/")[2])
    return found


def _cases(fact: Fact) -> Iterator[Case]:
    if fact.group == "calls":
        yield "call", fact.name, fact.name, fact.instead == EAGER
    elif fact.group == "adapters":
        adapter = fact.name.rpartition("/")[2]
        if _imports_a_name(adapter):
            yield "adapter", adapter, "precast.capture." if fact.stops else fact.name, fact.stops
    elif fact.group == "patches":
        for name in fact.names:
            yield "row", name, name.replace(":", "."), fact.stops
    else:
        yield "name", fact.names[0], fact.names[0].rpartition(":")[2], True


def _imports_a_name(adapter: str) -> bool:
    tree = ast.parse((ROOT / "capture" / "adapters" / adapter).read_text("utf-8"))
    return any(isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch.") for node in tree.body)


SAMPLE: tuple[Case, ...] = (
    ("name", "torch._C._dynamo.eval_frame:reset_code", "reset_code", True),
    ("name", "torch._C:_len_torch_function_stack", "_len_torch_function_stack", True),
    ("name", "torch._dynamo.variables.builder:VariableBuilder._wrap", "VariableBuilder._wrap", True),
    ("row", "torch._dynamo.symbolic_convert:get_funcname", "symbolic_convert.get_funcname", False),
    ("call", "aoti_torch_get_strides", "aoti_torch_get_strides", True),
)
EACH = [case for case in dict.fromkeys(cases()) if not case[1].startswith("triton")]
UNNOTICED = unnoticed()
PARTS = 12


def run(chosen: list[Case]) -> list[str]:
    """What is wrong with the outcomes, all of one process."""
    asked = json.dumps([case[:2] for case in chosen])
    command = [sys.executable, "-m", "tests.end_to_end.broken_torch", asked]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert len(answers) == len(chosen)
    return [problem for case, answer in zip(chosen, answers, strict=True) for problem in judged(case, answer)]


def judged(case: Case, answer: dict[str, Any]) -> Iterator[str]:
    """What is wrong with one outcome."""
    kind, name, told, eagerly = case
    what = f"{kind} {name}"
    if "error" in answer:
        yield f"{what}: {answer['error']}"
        return
    if name in UNNOTICED:
        told_of = not answer["warnings"]
    else:
        told_of = len(answer["warnings"]) == 1 and (kind == "adapter" or told in answer["warnings"][0])
    if not told_of:
        yield f"{what}: warnings {answer['warnings']}"
    if (answer["stored"] == 0) != (eagerly and name not in UNNOTICED):
        yield f"{what}: {answer['stored']} files in the store"
    if not any(told in line for line in answer["doctor"]):
        yield f"{what}: doctor says {answer['doctor']}"


def test_a_sample() -> None:
    """Where nothing is broken, nothing is said: the check of outcomes can fail."""
    problems = run([*SAMPLE, ("nothing", "", "anything", False)])
    assert problems == ["nothing : warnings []", "nothing : doctor says []"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_each_in_turn(part: int) -> None:
    assert len(EACH) > 150
    assert run(EACH[part::PARTS]) == []
