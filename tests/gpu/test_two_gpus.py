"""Two GPUs of one host that train together through NCCL: the losses of ten steps are eager's, and what is compiled is compiled once.

By hand, on a host with two: `python -m pytest tests/gpu/test_two_gpus.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from precast.artifact_store import Store
from tests.gpu.device import DEVICE
from tests.training.test_ddp import as_eager, together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cpu" or torch.cuda.device_count() < 2, reason="it takes two GPUs"),
]
CASES = ("inside", "in_place", "around", "sharded", "flat", "with_collectives")
PIECES = ("inside", "around", "sharded")
"""What has to be found by processes that come later, with no tracer."""
ENVIRONMENT = {"PRECAST_MEMBER_DEVICE": "cuda", "NCCL_NVLS_ENABLE": "0"}  # not every host has multicast over NVLink


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("nccl")
    return folder / "store", together(folder / "cold", folder / "store", *CASES, **ENVIRONMENT)


@pytest.mark.parametrize("case", CASES)
def test_losses_are_eager_s(case: str, cold: tuple[Path, list[dict[str, Any]]]) -> None:
    for told in cold[1]:
        as_eager(told[case])


def test_one_compile_for_both(cold: tuple[Path, list[dict[str, Any]]]) -> None:
    """No artifact twice, and none for one of the two devices alone: of one model in DDP there is one."""
    store, ranks = cold
    assert [told["inside"]["traced"] for told in ranks].count(True) == 1
    manifests = [m for m in Store.open(store).manifests() if "backward" in m.graphs]
    assert len({(m.program_key, m.guard_hash) for m in manifests}) == len(manifests)
    assert all(m.target.startswith("cuda:") for m in manifests)
    assert sum(m.program_name.endswith(":Net.forward") for m in manifests) <= 2  # as DDP calls it, and as it is sharded
    assert not any(told[case]["said"] for told in ranks for case in PIECES)


def test_later_processes_trace_nothing(cold: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    for told in together(tmp_path / "warm", cold[0], *PIECES, **ENVIRONMENT):
        for case in PIECES:
            as_eager(told[case])
            assert not told[case]["traced"]
