"""The comparison with upstream's ways: its cases change what they say, and one runs whole under each way that this torch has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "upstream"
UNCHANGED = {"threads", "inference", "no_compiler", "other_torch", "source_unused", "grad", "input_grad", "dtype", "autocast"}
"""Cases in which eager's numbers stay (nearly) as they were: the others must tell a stale answer from a right one."""
EAGER = """
import json, sys, warnings
from pathlib import Path
folder, source = sys.argv[1], sys.argv[2]
sys.path[:0] = [source, folder, folder + "/.."]
import torch
torch.set_grad_enabled(False)
from cases import ASSUMPTIONS
import subject
from worker import unequal
factor, scaled = subject.FACTOR, subject.scaled
text = Path(folder, "subject.py").read_text()
told = {}
for case in ASSUMPTIONS:
    program = subject.PROGRAMS[case.program]()
    before = program.model(*(a.clone() if isinstance(a, torch.Tensor) else a for a in program.args))
    if case.edit:
        assert text.count(case.edit[0]) == 1, case.name
        other = {"__name__": "edited"}
        exec(compile(text.replace(*case.edit), "edited.py", "exec"), other)
        program = other["PROGRAMS"][case.program]()
    for change in filter(None, (case.before, case.after)):
        change(program)
    with case.context():
        told[case.name] = unequal(program.model(*program.args), before)
    subject.FACTOR, subject.scaled = factor, scaled
print(json.dumps(told))
"""


def test_a_case_changes_eagers_answer(tmp_path: Path) -> None:
    (tmp_path / "subject.py").write_text((FOLDER / "subject.py").read_text())
    command = [sys.executable, "-c", EAGER, str(FOLDER), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    same = {name for name, difference in told.items() if not difference}
    assert same <= UNCHANGED, f"these cases change nothing that an answer shows: {same - UNCHANGED}"


def _run(tmp_path: Path, way: str, case: str) -> dict[str, str]:
    out = tmp_path / "out.json"
    command = [sys.executable, str(FOLDER), "--ways", way, "--cases", case, "--json", str(out), "--timeout", "120"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outcome: dict[str, str] = json.loads(out.read_text())["outcomes"][case][way]
    assert outcome["outcome"] in done.stderr
    return outcome


@pytest.mark.slow
def test_a_changed_number_is_a_miss_that_names_it(tmp_path: Path) -> None:
    outcome = _run(tmp_path, "precast_load", "number")
    assert outcome["outcome"] == "error" and outcome["at"] == "call", outcome
    assert "GuardMiss" in outcome["detail"] and "exponent" in outcome["detail"], outcome


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.compiler, "precompile"), reason=f"torch {torch.__version__} has no torch.compiler.precompile")
def test_upstreams_precompile_runs_under_the_harness(tmp_path: Path) -> None:
    assert _run(tmp_path, "precompile", "block")["outcome"] == "right"
