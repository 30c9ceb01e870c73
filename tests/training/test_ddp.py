"""Two processes that train together: the losses of eager, one compile for both, and no process that waits for one that cannot compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from precast.artifact_store import Store

ROOT = Path(__file__).parents[2]
WORLD = 2
SECONDS = 120
pytestmark = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()), reason="this torch has no gloo"
)


def together(folder: Path, store: Path, *cases: str, member: str = "tests.training.ddp_member", **more: str) -> list[dict[str, Any]]:
    """What each rank has to tell of the cases. `more`: environment variables."""
    folder.mkdir()
    env = {**os.environ, "PRECAST_STORE": str(store), "PRECAST_STRICT": "0", "PYTHONPATH": str(ROOT), **more}
    command = [sys.executable, "-m", member]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen([*command, str(rank), str(WORLD), str(folder), *cases], env=env, **pipes) for rank in range(WORLD)]
    try:
        said = [rank.communicate(timeout=SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * WORLD, "\n".join(error for _, error in said)
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def as_eager(told: dict[str, Any]) -> None:
    assert told["losses"] == pytest.approx(told["eager"], rel=1e-4) and len(set(told["eager"])) > 1


def programs(store: Path) -> list[str]:
    """Names of the programs with a backward graph, one for each artifact."""
    return [manifest.program_name.rpartition(":")[2] for manifest in Store.open(store).manifests() if "backward" in manifest.graphs]


CASES = ("inside", "around", "sharded", *(("with_collectives",) if torch.__version__ >= "2.12" else ()))


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The store, and what each rank has to tell of all cases."""
    folder = tmp_path_factory.mktemp("ddp")
    return folder / "store", together(folder / "cold", folder / "store", *CASES, "failing")


def test_one_compile_for_all_ranks(cold: tuple[Path, list[dict[str, Any]]]) -> None:
    """Within DDP, around it and sharded."""
    store, ranks = cold
    for told in ranks:
        for case in CASES:
            as_eager(told[case])
            assert not told[case]["said"]
    assert [told["inside"]["traced"] for told in ranks].count(True) == 1  # the other one waited, and loaded
    collective = ["Synchronised"] if "with_collectives" in CASES else []
    assert sorted(programs(store)) == ["Net", "Net", "Net.forward", *collective]  # a module, its `forward`, a function that DDP calls
    assert ranks[0]["inside"]["losses"] != ranks[1]["inside"]["losses"]


def test_fresh_processes_trace_nothing(cold: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """With another port, other process ids, other ranks first: none of it is in a key."""
    for told in together(tmp_path / "warm", cold[0], *CASES):
        for case in CASES:
            as_eager(told[case])
            assert not told[case]["traced"]


def test_a_rank_that_cannot_compile_runs_eagerly(cold: tuple[Path, list[dict[str, Any]]]) -> None:
    first, last = cold[1]
    as_eager(first["failing"])
    as_eager(last["failing"])
    assert not first["failing"]["said"]
    (said,) = last["failing"]["said"]
    assert "the disk is on fire" in said


@pytest.mark.slow
def test_fully_sharded_data_parallel_of_the_first_kind(tmp_path: Path) -> None:
    """Compiled inside of it and around it; fresh processes find all of it."""
    store = tmp_path / "store"
    for folder, traces in (("cold", True), ("warm", False)):
        ranks = together(tmp_path / folder, store, "flat", "flat_around")
        for told in ranks:
            for case in ("flat", "flat_around"):
                as_eager(told[case])
                assert not told[case]["said"]
        assert any(told["flat_around"]["traced"] for told in ranks) == traces


@pytest.mark.slow
def test_torch_splits_the_graph_at_buckets(tmp_path: Path) -> None:
    """`torch.compile(DDP(model), backend="precast")`: each part has a backward graph, and later processes load them all."""
    store = tmp_path / "store"
    for folder in ("cold", "warm"):
        for told in together(tmp_path / folder, store, "by_torch"):
            as_eager(told["by_torch"])
            assert not told["by_torch"]["said"]
        assert len(programs(store)) == 3


@pytest.mark.slow
def test_what_else_trains_rightly(tmp_path: Path) -> None:
    """Compiled in place before DDP; and around sharded modules, in pieces that are kept in the process."""
    for told in together(tmp_path / "group", tmp_path / "store", "sharded_around", "in_place"):
        as_eager(told["sharded_around"])
        (said,) = told["sharded_around"]["said"]
        assert "Compile what is sharded first: block.forward = precast.compile(block.forward), then fully_shard(block)" in said
        assert not told["in_place"]["said"]
        as_eager(told["in_place"])
