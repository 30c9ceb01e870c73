"""torch's module_db with gradients, in train and eval mode: a sample in CI; all of it, on both doors and on Inductor, by `make test-full`
and by `python -m tests.ops.opdb --backend precast-modules --backend torch-door-modules --backend inductor-modules`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ops.modules_judge import BACKENDS, cases, judge
from tests.ops.opdb import MODULE_BACKENDS, passing, run, summary

SAMPLE = {
    ("nn.BatchNorm2d train", "precast-modules"): "refused",  # the second sample divides by how many batches it has seen
    ("nn.GRUCell eval", "precast-modules"): "pass",
    ("nn.InstanceNorm1d train", "torch-door-modules"): "pass",
}
SAMPLES = 2


@pytest.mark.parametrize(("name", "backend"), SAMPLE)
def test_as_stated(name: str, backend: str) -> None:
    """What is refused as one graph has been compared with eager in pieces."""
    found = judge(name, backend, SAMPLES)
    assert found["samples"] and found["verdict"] == SAMPLE[name, backend], found["reason"]


def test_every_backend_can_be_asked_for() -> None:
    assert set(MODULE_BACKENDS) == set(BACKENDS) and len(cases()) > 200


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_no_fewer_than_inductors_and_none_wrong(tmp_path: Path) -> None:
    """`PRECAST_MODULES_OUT=file.json` keeps the verdicts and resumes from them."""
    out = Path(os.environ.get("PRECAST_MODULES_OUT", tmp_path / "modules.json"))
    results = run(MODULE_BACKENDS, cases(), SAMPLES, out=out)
    print("\n".join(summary(results)))
    for ours in ("precast-modules", "torch-door-modules"):
        assert not [name for name, v in results[ours].items() if v["verdict"] in ("wrong", "crash")]
        assert len(passing(results[ours])) >= len(passing(results["inductor-modules"]))
