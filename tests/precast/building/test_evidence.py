"""Evidence: recorded at the build, replayed by the check; what answers otherwise is found, and never stays in the store."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from precast.artifact_store import Manifest, Store
from precast.building import evidence
from precast.building.build_file import BuildFileError, Loaded, load, parse, read
from precast.building.build_job import Job
from precast.cli.main import main

MODULE = """
import os
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return {"y": torch.nn.functional.gelu(self.linear(x)), "n": (x > 0).sum()}

def net():
    model = Net().eval()
    if os.environ.get("OTHER_WEIGHTS"):
        torch.nn.init.ones_(model.linear.weight)
    return model, [((torch.randn(4, 8),), {})]

def f(x):
    y = x.sin()
    print("a graph break")
    return y + 1

def breaking():
    return f, [((torch.ones(4),), {})]
"""
TARGET = "cpu:x86-64-v2"


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "proved.py").write_text(MODULE)
    (tmp_path / "b.toml").write_text(f'store = "store"\ntargets = ["{TARGET}"]\nevidence = true\n[[program]]\nfactory = "proved:net"\n')
    return tmp_path / "b.toml"


def run(*words: str) -> tuple[int, Any]:
    done = CliRunner().invoke(main, [*words, "--json"], catch_exceptions=False)
    return done.exit_code, json.loads(done.stdout[done.stdout.index("{\n") :])  # a program may print, too


def golden_of(plan: Path) -> tuple[Store, Manifest, dict[str, Any]]:
    store = Store.open(plan.parent / "store")
    (manifest,) = store.manifests()
    return store, manifest, manifest.evidence[evidence.GOLDEN]


def rewritten(plan: Path, **changes: Any) -> None:
    """The artifact with other evidence than it was built with."""
    store, manifest, golden = golden_of(plan)
    blobs = {name: data for name in manifest.blobs if (data := store.blob(name)) is not None}
    store.put(manifest.with_evidence({evidence.GOLDEN: {**golden, **changes}}), blobs)


def test_built_then_replayed_bit_for_bit(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, built = run("build", str(plan), "--jobs", "1")
    assert code == 0 and built["counts"]["compiled"] == 1
    store, manifest, golden = golden_of(plan)
    assert golden["seed"] == evidence.SEED and len(golden["inputs"]) == len(golden["weights"]) == 64
    assert [(item["dtype"], list(item["shape"])) for item in golden["outputs"]] == [("float32", [4, 8]), ("int64", [])]
    assert (
        golden["speed"]["eager_ms"] > 0 and golden["speed"]["rounds"] >= 3 and dict(golden["tolerance"]) == {"float32": 1e-3, "int64": 0.0}
    )
    assert manifest.evidence["compiler"], "the rest of it stays"

    code, checked = run("check", str(plan), "--evidence")
    assert (code, checked["programs"][0]["status"]) == (0, "hit")
    assert checked["programs"][0]["reason"] == "its answer is that of the build, bit for bit"
    code, plain = run("check", str(plan))
    assert (code, plain["programs"][0]["reason"]) == (0, ""), "a plain check runs nothing"

    code, again = run("build", str(plan), "--jobs", "1")
    assert again["counts"]["there already"] == 1 and golden_of(plan)[2] == golden

    monkeypatch.setenv("OTHER_WEIGHTS", "1")
    code, other = run("check", str(plan), "--evidence")
    assert code == 0 and "the weights are not those of the build" in other["programs"][0]["reason"]
    monkeypatch.delenv("OTHER_WEIGHTS")

    outputs = [dict(item) for item in golden["outputs"]]
    rewritten(plan, outputs=[{**outputs[0], "digest": "0" * 64}, outputs[1]])
    code, rounded = run("check", str(plan), "--evidence")
    assert code == 0 and rounded["programs"][0]["reason"] == "its answer is that of the build, to rounding"
    rewritten(plan, outputs=[{**outputs[0], "digest": "0" * 64, "samples": [9.0, *outputs[0]["samples"][1:]]}, outputs[1]])
    code, differs = run("check", str(plan), "--evidence")
    assert (code, differs["programs"][0]["status"]) == (1, "differs")
    assert "where it was 9 at the build" in differs["programs"][0]["reason"]
    rewritten(plan, inputs="0" * 64)
    code, unseeded = run("check", str(plan), "--evidence")
    assert code == 0 and "the inputs are not those of the build" in unseeded["programs"][0]["reason"]


def test_a_wrong_answer_fails_the_build_and_is_taken_out(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = evidence.Golden.eager
    monkeypatch.setattr(evidence.Golden, "eager", lambda self: lambda: {name: t + 1 for name, t in plain(self)().items()})
    code, built = run("build", str(plan), "--jobs", "1")
    assert code == 1 and built["programs"][0]["status"] == "failed" and built["programs"][0]["artifact"] is None
    assert "its answer is wrong: output 0 is off by 1" in built["programs"][0]["reason"]
    assert list(Store.open(plan.parent / "store").manifests()) == []


def test_what_was_built_without_has_none_and_gets_it(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("evidence = true\n", ""))
    assert run("build", str(plan), "--jobs", "1")[0] == 0
    code, checked = run("check", str(plan), "--evidence")
    assert (code, checked["programs"][0]["status"]) == (1, "no evidence")
    assert "`precast build --evidence` records some" in checked["programs"][0]["reason"]
    code, again = run("build", str(plan), "--jobs", "1", "--evidence")
    assert (code, again["counts"]["there already"]) == (0, 1)
    assert run("check", str(plan), "--evidence")[0] == 0


def test_where_there_can_be_none_that_is_said(plan: Path) -> None:
    plan.write_text(plan.read_text().replace("proved:net", "proved:breaking"))
    code, built = run("build", str(plan), "--jobs", "1")
    assert code == 0 and "no evidence: the program has graph breaks" in built["programs"][0]["reason"]


def test_with_remotes_what_is_proved_is_what_is_sent(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    assert run("build", str(plan), "--jobs", "1", "--remote", f"shared://{tmp_path}/shared?trust=any")[0] == 0
    from precast.artifact_store.remote.attach import open_tier
    from precast.artifact_store.remote.settings import from_url

    _, manifest, golden = golden_of(plan)
    tier = open_tier(from_url(f"shared://{tmp_path}/shared?trust=any", "test"))
    index = tier.index(manifest.program_key)
    assert index is not None
    fetched = tier.fetch(manifest.program_key, index.entries[0], lambda blob: False)
    assert fetched.manifest.evidence[evidence.GOLDEN] == golden


@pytest.mark.parametrize(("given", "want"), [({}, [False, True]), ({"evidence": True}, [True, True]), ({"evidence": False}, [False, True])])
def test_the_key_of_a_build_file(given: dict[str, Any], want: list[bool]) -> None:
    programs = [{"factory": "a:b"}, {"factory": "a:c", "evidence": True}]
    assert [spec.evidence for spec in parse({**given, "program": programs}, "b.toml", Path()).programs] == want


def test_another_value_is_refused() -> None:
    with pytest.raises(BuildFileError, match=r"b.toml: evidence is true or false, not str 'yes'"):
        parse({"evidence": "yes", "program": [{"factory": "a:b"}]}, "b.toml", Path())


def test_factories_draw_the_same_and_nothing_after_them_does(plan: Path) -> None:
    spec = read(str(plan)).programs[0]
    before = random.getstate()
    one, two = (load(spec, [str(plan.parent)]) for _ in range(2))
    assert torch.equal(one.signatures[0][0][0], two.signatures[0][0][0]) and random.getstate() == before
    assert evidence.weights_of(one.callable) == evidence.weights_of(two.callable) != ""
    assert not torch.equal(one.signatures[0][0][0], load(replace(spec, evidence=False), [str(plan.parent)]).signatures[0][0][0])


def test_another_target_has_none_here(plan: Path, tmp_path: Path) -> None:
    job = Job(Loaded(read(str(plan)).programs[0], torch.sin, (((torch.ones(2),), {}),)), Store.open(tmp_path / "s"))
    with pytest.raises(evidence.NoEvidence, match="this machine cannot run what is built for cuda:sm_90"):
        job._proved("cuda:sm_90", "a" * 64)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("wanted", "got", "words"),
    [
        (torch.ones(3), torch.ones(3) * (1 + 1e-4), ""),
        (torch.ones(3), torch.ones(3) * 1.01, "output 0 is off by 0.01"),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16) * 1.01, ""),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), ""),
        (torch.tensor([1.0, NAN]), torch.tensor([NAN, 1.0]), "off by inf"),
        (torch.tensor([1.0, INF]), torch.tensor([1.0, INF]), ""),
        (torch.tensor([1.0, INF]), torch.tensor([1.0, 2.0]), "off by inf"),
        (torch.zeros(2), torch.zeros(2) + 1e-9, "off by 1e-09"),
        (torch.zeros(0), torch.zeros(0), ""),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), "differs from eager's at 1 of 2 places"),
        (torch.ones(2), torch.ones(3), "output 0 is torch.float32 (3,), eager's torch.float32 (2,)"),
        ((torch.ones(2),), (torch.ones(2), torch.ones(2)), "it has 2 tensors, eager's 1"),
        (torch.ones(2) * 1j, torch.ones(2) * 1.01j, "off by 0.01"),
    ],
)
def test_what_counts_as_wrong(wanted: Any, got: Any, words: str) -> None:
    assert words in evidence.difference(wanted, got) and bool(evidence.difference(wanted, got)) is bool(words)


@pytest.mark.parametrize(
    "value",
    [torch.ones(2), torch.ones(1, 2), torch.ones(2).double(), torch.tensor([1.0, 2.0]), torch.ones(2).bfloat16(), 1, 1.0, "1", None, True],
)
def test_digests_tell_values_apart(value: Any) -> None:
    others = [torch.ones(3), torch.zeros(2), 2, "2", False, torch.ones(2, dtype=torch.complex64)]
    assert evidence.digest_of([value]) == evidence.digest_of((value,))
    assert evidence.digest_of(value) not in [evidence.digest_of(other) for other in others]
    assert evidence.digest_of(torch.ones(2, 3).t()) == evidence.digest_of(torch.ones(3, 2))
