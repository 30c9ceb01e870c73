"""benchmarks/archetypes.py: its networks run at both targets' sizes, and its table says what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import archetypes


def test_the_networks_run_at_the_sizes_of_a_gpu() -> None:
    """Without data; thirteen kinds, of which the U-Net has Stable Diffusion 1.5's 860 million parameters."""
    assert len(archetypes.ROWS) == 13
    for name, row in archetypes.ROWS.items():
        module, inputs = row.built("meta")
        with torch.no_grad():
            assert tree_leaves(module(*inputs)), name
        if name == "unet":
            assert round(sum(p.numel() for p in module.parameters()) / 1e6) == 860


@pytest.mark.parametrize("name", ["recurrent", "point clouds", "experts", "state space"])
def test_the_networks_run_at_the_sizes_of_a_cpu(name: str) -> None:
    module, inputs = archetypes.ROWS[name].built("cpu")
    again, same = archetypes.ROWS[name].built("cpu")
    with torch.no_grad():
        for got, want in zip(tree_leaves(module(*inputs)), tree_leaves(again(*same)), strict=True):
            assert got.isfinite().all()
            torch.testing.assert_close(got, want, msg="a row is the same in every process")


def found(row: str, ours: float, theirs: float, **more: Any) -> dict[str, Any]:
    times = {"eager": 9.0, "torch.compile": theirs, "precast": ours, "precast freeze": 2 * ours}
    empty: dict[str, Any] = {"memory": {"precast": 3 << 20}, "prepared": {}, "difference": {"eager": 0.0}, "errors": {}, "wrong": []}
    return {"row": row, "seconds": times, "spread": {name: [t, t] for name, t in times.items()}, **empty, **more}


def test_a_summary_names_what_is_slower_than_a_rivals_best() -> None:
    text = archetypes.summary([found("fast", 1.0, 2.0), found("slow", 4.0, 2.0)])
    assert "2 rows; best rival over best of precast 1.00" in text and "slow 0.50  slow" in text and "fast" not in text
    one = found("wrong", 1.0, 2.0, wrong=["precast"], difference={"eager": 0.0, "precast": 0.5}, errors={"freezing": "RuntimeError: no"})
    line = archetypes.line(one, ["eager", "freezing", "precast"])
    assert "WRONG precast: 5.0e-01" in line and "freezing: RuntimeError: no" in line and " 3M" in line
    assert archetypes.ratio(found("none", 1.0, 2.0) | {"seconds": {"eager": 1.0}}) == 0.0


@pytest.mark.slow
def test_one_row_is_measured_in_its_own_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    kept = tmp_path / "kept.jsonl"
    options = ["--rows", "recurrent", "--contenders", "eager,precast", "--rounds", "2", "--resume", str(kept)]
    monkeypatch.setattr(sys, "argv", ["archetypes.py", *options])
    assert archetypes.main() == 0, capsys.readouterr().out
    (line,) = kept.read_text().splitlines()
    one = json.loads(line)
    assert set(one["seconds"]) == {"eager", "precast"} and not one["wrong"] and not one["errors"]
    assert archetypes.main() == 0 and kept.read_text().splitlines() == [line], "what is finished is not measured again"
