"""benchmarks/kernels.py: its programs run at both targets' sizes, and its table says what was measured."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import kernels
from kernel_rows import ROWS


def test_there_are_enough_in_every_family() -> None:
    assert len(ROWS) >= 120
    families = {row.family for row in ROWS.values()}
    assert {
        "pointwise",
        "reductions",
        "norms",
        "softmax",
        "cross-entropy",
        "scans",
        "pooling",
        "convolutions",
        "gathers",
        "scatters",
    } <= families
    assert {"sorting", "resampling", "attention", "products", "joins", "casts", "recurrent", "transforms"} <= families


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_programs_run_at_these_sizes(device: str) -> None:
    """Without data: "meta" takes the sizes of a GPU."""
    for name, row in ROWS.items():
        with FakeTensorMode(allow_non_fake_inputs=True) if device == "cpu" else contextlib.nullcontext():
            program, inputs = row.make(device)
            gradients: list[torch.Tensor] = []
            if row.train:
                for t in inputs:
                    if isinstance(t, torch.Tensor) and t.is_floating_point():
                        t.requires_grad_()
            with torch.enable_grad():
                results = kernels.tensors(kernels.step(row, program, inputs, gradients)())
        assert results, name


def found(row: str, precast: float, compiled: float, eager: float = 9.0, **more: Any) -> dict[str, Any]:
    times = {"eager": eager, "torch.compile": compiled, "precast": precast}
    return {
        "row": row,
        "seconds": times,
        "quartiles": [1, 2],
        "floor": 1.0,
        "difference": {"eager": 0.0},
        "errors": {},
        "wrong": False,
    } | more


def test_a_summary_names_what_is_slow_and_what_is_far_from_the_floor() -> None:
    text = kernels.summary([found("a/fast", 1.0, 2.0), found("a/slow", 4.0, 2.0), found("a/even", 2.0, 2.0)])
    assert "3 rows; geometric mean over torch.compile 1.00" in text
    assert "slow 0.50  a/slow" in text and "a/fast" not in text and "of the floor 0.25  a/slow" in text
    one = found("a/wrong", 1.0, 2.0, wrong=True, difference={"eager": 0.0, "precast": 0.5}, errors={"freezing": "RuntimeError: no"})
    assert "WRONG: 5.0e-01" in kernels.line(one) and "freezing: RuntimeError: no" in kernels.line(one)


def test_one_row_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = {name: row for name, row in ROWS.items() if name == "recurrent/LSTM cell"}
    monkeypatch.setattr(kernels, "ROWS", rows)
    kept = tmp_path / "kept.jsonl"
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--rounds", "2", "--resume", str(kept)])
    assert kernels.main() == 0
    (line,) = kept.read_text().splitlines()
    assert '"precast"' in line and '"wrong": false' in line
    assert kernels.main() == 0 and kept.read_text().splitlines() == [line], "what is finished is not measured again"
