"""Across processes: the same guard set whatever the hash seed and the history, and a rebuild that needs no tracer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

CHILD = Path(__file__).parent / "child_process.py"


def child(*arguments: str, seed: str = "0", cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, CHILD, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=cwd,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def read(path: Path) -> Any:
    return msgpack.unpackb(path.read_bytes(), strict_map_key=False)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(["nested modules", "literal tensor"], id="programs"),
        pytest.param(["gpt2", "llama"], id="models", marks=pytest.mark.slow),
    ],
)
def test_history_and_hash_seed_change_nothing(tmp_path: Path, before: list[str]) -> None:
    child("capture", str(tmp_path / "alone"), "bert", seed="1", cwd=tmp_path)
    child("capture", str(tmp_path / "late"), *before, "bert", seed="77")
    alone, late = read(tmp_path / "alone"), read(tmp_path / "late")
    assert alone["uncacheable"] == []
    for key in ("hash", "guards", "digests", "code", "inputs", "outputs", "graph"):
        assert alone[key] == late[key], key
    assert "ran" in child("run", str(tmp_path / "late"), "bert", seed="5")


@pytest.mark.parametrize("name", ["nested modules", "inner function", "literal tensor", "dataclass result", "ordered dict", "t5"])
def test_a_fresh_process_needs_no_tracer(tmp_path: Path, name: str) -> None:
    child("capture", str(tmp_path / "frame"), name)
    assert "ran" in child("run", str(tmp_path / "frame"), name, seed="9")


SOURCE = """
import torch
from helpers import helper
def program(x):
    return helper(x) + 1
"""
HELPERS = """
def helper(x):
    {comment}
    return x * {factor}
def other(x):
    return x + {unrelated}
"""
EDITS = [
    (dict(comment="pass", factor=2, unrelated=1), True),
    (dict(comment="pass  # a remark\n\n", factor=2, unrelated=1), True),
    (dict(comment="pass", factor=2, unrelated=7), True),
    (dict(comment="pass", factor=3, unrelated=1), False),
]
EDIT_RUN = """
import sys, torch, msgpack
sys.path.insert(0, {folder!r})
import app
from precast.runtime.fingerprint.validate import changed_code
from precast.runtime.guards.evaluate import failure
from precast.artifact_store.format.guards import Guard
data = msgpack.unpackb(open({record!r}, "rb").read(), strict_map_key=False)
reason = changed_code(data["digests"], app.program.__code__)
failures = [t for g in map(Guard.from_data, data["guards"]) if (t := failure(g, {{"x": torch.ones(3)}}))]
print(repr((reason, failures)))
"""
EDIT_CAPTURE = """
import sys, torch, msgpack
sys.path.insert(0, {folder!r})
import app
from precast.capture import capture
frame = capture(app.program, (torch.ones(3),))
data = {{"guards": [g.to_data() for g in frame.guards]}}
data |= {{"digests": {{f"{{d.module}}:{{d.qualname}}#{{d.digest}}": d.digest for d in frame.digests}}}}
open({record!r}, "wb").write(msgpack.packb(data))
"""


def test_editing_a_traced_helper_misses_and_other_edits_hit(tmp_path: Path) -> None:
    record = str(tmp_path / "record")

    def run(source: str) -> str:
        text = source.format(folder=str(tmp_path), record=record)
        done = subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    (tmp_path / "app.py").write_text(SOURCE)
    (tmp_path / "helpers.py").write_text(HELPERS.format(**EDITS[0][0]))
    run(EDIT_CAPTURE)
    for values, hits in EDITS:
        (tmp_path / "helpers.py").write_text(HELPERS.format(**values))
        reason, failures = eval(run(EDIT_RUN))
        assert (not reason and not failures) == hits, (values, reason, failures)
        if not hits:
            assert "helper" in reason
