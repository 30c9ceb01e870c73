"""`precast show ID --steps` and `--chip`: times that are predicted from an artifact's records, without the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.artifact_store import Store
from precast.cli.main import main
from precast.cli.programs.chips import chip_for
from precast.lowering.costs.chip_records import CHIPS
from precast.lowering.costs.chips import to_data


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w).softmax(-1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The store's folder, and the artifact's id."""
    store = Store.open(tmp_path_factory.mktemp("steps") / "store")
    precast.compile(program, store=store)(torch.randn(512, 256), torch.randn(256, 384))
    ((manifest,),) = [store.variants(key) for key in store.programs()]
    return str(store.root), manifest.artifact_id


def said(built: tuple[str, str], *words: str) -> str:
    result = CliRunner().invoke(main, ["show", built[1], "--steps", "--store", built[0], *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_steps_are_predicted_the_dearest_first(built: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.cli.store.predicted_steps.chip_for", lambda target, here: CHIPS["NVIDIA H100"])
    found = json.loads(said(built, "--json"))
    steps = found["graphs"]["forward"]["steps"]
    assert found["chip"] == "NVIDIA H100" and any(step["products"] for step in steps)
    assert found["graphs"]["forward"]["seconds"] == pytest.approx(sum(step["predicted_seconds"] for step in steps))
    assert all(step["predicted_seconds"] >= CHIPS["NVIDIA H100"].call and step["bound"] in ("memory", "compute", "call") for step in steps)
    text = said(built, "-H")
    assert "to be expected of NVIDIA H100" in text and "PREDICTED" in text and "forward.0" in text
    times = [float(line.split("\t")[0]) for line in said(built).splitlines() if "\t" in line]
    assert times == sorted(times, reverse=True) and len(times) == len(steps)


def test_another_chip_by_name_and_by_file(built: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**to_data(CHIPS["NVIDIA A10"]), "name": "mine", "call": 1.0}))
    assert json.loads(said(built, "--chip", "b200", "--json"))["chip"] == "NVIDIA B200"
    mine = json.loads(said(built, "--chip", str(file), "--json"))
    assert mine["chip"] == "mine" and all(step["bound"] == "call" for step in mine["graphs"]["forward"]["steps"])


@pytest.mark.parametrize(
    ("chip", "why"), [("nvidia", "several are called so"), ("abacus", "no chip of that name"), ("gone.json", "gone.json")]
)
def test_a_chip_that_is_not_known_is_refused(built: tuple[str, str], chip: str, why: str) -> None:
    result = CliRunner().invoke(main, ["show", built[1], "--steps", "--store", built[0], "--chip", chip])
    assert result.exit_code == 2 and why in result.output


def test_without_a_known_chip_it_says_what_to_give(built: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precast.cli.store.predicted_steps.chip_for", lambda target, here: None)
    result = CliRunner().invoke(main, ["show", built[1], "--steps", "--store", built[0]])
    assert result.exit_code == 1 and "--chip names one" in result.output


def test_a_gpu_that_is_not_here_has_its_architecture_s_chip() -> None:
    assert chip_for("cuda:sm_90", here=False) is CHIPS["NVIDIA H100"] and chip_for("cuda:sm_80", here=False) is CHIPS["NVIDIA A100"]
