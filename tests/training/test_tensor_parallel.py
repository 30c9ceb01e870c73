"""Programs on DTensors, on two processes: compiled, stored, and served without the tracer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from precast.artifact_store import Store
from tests.training.test_ddp import together

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"),
    pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 pins the objects of process groups"),
]
MEMBER = "tests.training.tensor_parallel_member"
FOR_ALL = {
    **{"plain": 1, "sequence": 1, "given_back": 1, "arguments": 1, "other_placements": 5, "equal_mesh": 1, "named_mesh": 2},
    **{"trained_plain": 2, "trained_sequence": 1, "trained_given_back": 1},
}
"""How many artifacts all ranks together make, of cases whose graphs do not depend on the rank."""
FOR_EACH = {"own_rows": 2, "uneven": 2, "words": 2, "trained_words": 2, "trained_arguments": 5}
"""The same, where some do: gloo has no all-to-all, and gathers and cuts instead."""


def made(folder: Path, store: Path, **more: str) -> list[dict[str, Any]]:
    told = together(folder, store, *FOR_ALL, *FOR_EACH, member=MEMBER, **more)
    assert all(case["right"] and not case["said"] for rank in told for case in rank.values()), told
    return told


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stores are, one for each case."""
    folder = tmp_path_factory.mktemp("tensor_parallel")
    made(folder / "cold", folder / "store")
    return folder


def artifacts(folder: Path, case: str) -> int:
    return len([*Store.open(folder / f"store-{case}").manifests()])


def test_one_compile_for_all_ranks(cold: Path) -> None:
    assert {case: artifacts(cold, case) for case in FOR_ALL} == FOR_ALL


def test_a_graph_that_depends_on_the_rank_is_one_rank_s(cold: Path) -> None:
    assert {case: artifacts(cold, case) for case in FOR_EACH} == FOR_EACH


def test_fresh_processes_trace_nothing(cold: Path, tmp_path: Path) -> None:
    for told in made(tmp_path / "warm", cold / "store", PRECAST_MEMBER_SERVES="1"):
        assert not any(case["traced"] for case in told.values()), told
