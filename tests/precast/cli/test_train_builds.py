"""`train = true` in a build file: artifacts with a backward graph, which check, ls and show tell apart, and which training hits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import precast
from precast.artifact_store import Store
from precast.building.build_file import BuildFileError, parse
from precast.cli.main import main
from tests.precast.cli.app import net_in_training

FILE = """
store = "store"
[[program]]
factory = "tests.precast.cli.app:net_in_training"
train = {train}
options = {{ dynamic = "yes" }}
"""


def command(folder: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a build file of a program that trains, and one of the same program that does not; the first one is built."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "train.toml").write_text(FILE.format(train="true"))
    (folder / "serve.toml").write_text(FILE.format(train="false"))
    outcomes = json.loads(command(folder, "build", str(folder / "train.toml"), "--json"))["programs"]
    assert [outcome["status"] for outcome in outcomes] == ["compiled", "there already"]
    return folder


def test_check_proves_that_training_hits_and_serving_does_not(built: Path) -> None:
    assert "2 of 2 signatures hit" in CliRunner().invoke(main, ["check", str(built / "train.toml")]).output
    said = json.loads(command(built, "check", str(built / "serve.toml"), "--json", code=1))["programs"]
    assert {outcome["status"] for outcome in said} == {"miss"} and "grad" in said[0]["reason"]


def test_training_hits_what_was_built(built: Path) -> None:
    program, calls = net_in_training()
    compiled = precast.load(program, store=built / "store", require="hit", options={"dynamic": "yes"})
    for args, kwargs in calls:
        gradients = []
        for called in (compiled, program):
            program.zero_grad()
            called(*args, **kwargs).square().sum().backward()
            gradients.append([p.grad.clone() for p in program.parameters()])
        torch.testing.assert_close(*gradients)


def test_ls_and_show_tell_the_graphs_apart(built: Path) -> None:
    store = str(built / "store")
    listed: list[dict[str, Any]] = json.loads(command(built, "ls", "--store", store, "--json"))
    assert [entry["graphs"] for entry in listed] == [["forward", "backward"]]
    assert "GRAPHS" in (table := command(built, "ls", "--store", store, "-H")) and "forward backward" in table
    text = command(built, "show", listed[0]["id"], "--store", store)
    assert text.index("graph      forward") < text.index("graph      backward") and text.count("library call") == 2
    kept = json.loads(command(built, "show", listed[0]["id"], "--store", store, "--json"))["kept"]
    assert kept["tensors"] == kept["unsized"] + (kept["bytes"] > 0) and kept["gradients"] == 2


def test_the_bytes_that_are_kept(tmp_path: Path) -> None:
    """What a matrix product and sin need: the product, of 4 by 8 floats, and x, which is an input."""
    weight = torch.randn(8, 8, requires_grad=True)

    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x @ weight).sin()

    precast.precompile(f, [((torch.randn(4, 8), weight), {})], store=tmp_path)
    (manifest,) = Store.open(tmp_path).manifests()
    text = command(tmp_path, "show", manifest.artifact_id, "--store", str(tmp_path))
    assert "keeps      128 B of activations (1 tensor); 1 input of the call; for the gradients of 1 input" in text


def test_evidence_is_of_answers() -> None:
    table = {"factory": "a:b", "train": True, "evidence": True}
    with pytest.raises(BuildFileError, match="not tried yet"):
        parse({"program": [table]}, "b.toml", Path())
    (spec,) = parse({"program": [{"factory": "a:b", "train": True}], "evidence": True}, "b.toml", Path()).programs
    assert spec.train and not spec.evidence
