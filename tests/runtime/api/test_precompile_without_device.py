"""precompile for a GPU on a machine that has none: what is stored, what the report says, that the model stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.runtime.common.errors import PrecastError
from precast.runtime.programs import program as program_module
from precast.runtime.targets import nvidia_devices
from tests.support.needs import needs

needs("triton")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.gelu(self.first(x)))


class Breaking(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        if y.sum() > 0:
            y = y * 2
        return self.last(y)


def test_targets_lie_beside_each_other_under_one_key(tmp_path: Path) -> None:
    net, calls = Net().eval(), [((torch.randn(3, 8),), {})]
    with torch.no_grad():
        first = precast.precompile(net, calls, targets=["cuda:sm_90", "cuda:sm_80", "cpu:native"], store=tmp_path)
        again = precast.precompile(net, calls, targets=["cuda:sm_80"], store=tmp_path)
    assert first.ok and [item.outcome for item in first.signatures] == ["compiled"] * 3
    assert [item.target for item in first.signatures[:2]] == ["cuda:sm_90", "cuda:sm_80"]
    assert [(item.outcome, item.artifact_id) for item in again.signatures] == [("hit", first.signatures[1].artifact_id)]
    manifests = Store.open(tmp_path).variants(first.key)
    assert len(manifests) == 3 and again.key == first.key
    hashes = {manifest.target: manifest.guard_hash for manifest in manifests}
    assert hashes["cuda:sm_90"] == hashes["cuda:sm_80"] != hashes[first.signatures[2].target]
    for manifest in manifests:
        roles = manifest.graphs["forward"].blobs
        assert ("image0" in roles) is manifest.target.startswith("cuda:")
    assert {parameter.device.type for parameter in net.parameters()} == {"cpu"}
    with torch.no_grad():
        served = precast.load(net, store=tmp_path, require="hit")
        torch.testing.assert_close(served(*calls[0][0]), net(*calls[0][0]))
        with pytest.raises(precast.GuardMiss, match="this machine|hides every GPU"):
            served(torch.randn(5, 5, 8))


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).tanh()


def test_a_call_that_records_gradients(tmp_path: Path) -> None:
    """Both graphs, with their images, for two architectures; the same artifact from a model without weights."""
    net, x = Scale(), torch.randn(3, 8)
    with torch.enable_grad():
        made = precast.precompile(net, [((x,), {})], targets=["cuda:sm_90", "cuda:sm_80"], store=tmp_path)
    assert made.ok and [item.outcome for item in made.signatures] == ["compiled"] * 2, str(made)
    for manifest in Store.open(tmp_path).variants(made.key):
        assert {role: "image0" in graph.blobs for role, graph in manifest.graphs.items()} == {"forward": True, "backward": True}
    with torch.device("meta"):
        unmade, y = Scale(), torch.empty(3, 8)
    with torch.enable_grad():
        same = precast.precompile(unmade, [((y,), {})], targets=["cuda:sm_90"], store=tmp_path)
    assert [(item.outcome, item.artifact_id) for item in same.signatures] == [("hit", made.signatures[0].artifact_id)]
    assert net.weight.grad is None and net.weight.device.type == "cpu"


def test_a_model_without_weights(tmp_path: Path) -> None:
    with torch.device("meta"):
        net, x = Net().eval(), torch.empty(3, 8)
    with torch.no_grad():
        made = precast.precompile(net, [((x,), {})], targets=["cuda:sm_90"], store=tmp_path)
        same = precast.precompile(Net().eval(), [((torch.ones(3, 8),), {})], targets=["cuda:sm_90"], store=tmp_path)
    assert made.signatures[0].outcome == "compiled" and same.signatures[0].outcome == "hit"


def test_what_comes_after_a_graph_break_is_said_to_be_missing(tmp_path: Path) -> None:
    with torch.no_grad():
        report = precast.precompile(Breaking().eval(), [((torch.randn(3, 8),), {})], targets=["cuda:sm_90"], store=tmp_path)
    (item,) = report.signatures
    assert item.outcome == "compiled" and item.target == "cuda:sm_90"
    assert "only what comes before the first graph break" in item.reason


def test_a_graph_on_the_cpu_is_portable(tmp_path: Path) -> None:
    def counts(n: int) -> torch.Tensor:
        return torch.arange(n) * 2

    with torch.no_grad():
        report = precast.precompile(counts, [((5,), {})], targets=["cuda:sm_90"], store=tmp_path)
    assert [(item.outcome, item.target) for item in report.signatures] == [("compiled", "cpu:x86-64-v3")]


def test_a_program_that_cannot_be_copied(tmp_path: Path) -> None:
    net: Any = Net().eval()
    net.source = (number for number in range(3))
    with pytest.raises(PrecastError, match="cannot be copied"):
        precast.precompile(net, [((torch.randn(3, 8),), {})], targets=["cuda:sm_90"], store=tmp_path)


@pytest.mark.parametrize("unknown", [False, True])
def test_where_gpus_cannot_be_asked_for_artifacts_are_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: bool
) -> None:
    net, calls = Net().eval(), [((torch.randn(3, 8),), {})]
    monkeypatch.setattr(nvidia_devices, "unknown", lambda: unknown)
    looked: list[str] = []
    monkeypatch.setattr(program_module, "why_not", lambda manifest, program: looked.append(manifest.target) or "no GPU was seen")
    with torch.no_grad():
        precast.precompile(net, calls, targets=["cuda:sm_90"], store=tmp_path)
        served = precast.load(net, store=tmp_path, require="hit")
        for _ in range(2):
            with pytest.raises(precast.GuardMiss):
                served(*calls[0][0])
    assert looked.count("cuda:sm_90") == (2 if unknown else 1)
