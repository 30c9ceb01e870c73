"""Twelve jobs on real workers of dask (and of ray), one of which is killed: every artifact is the one that a local build makes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from precast.artifact_store import Manifest, Store
from precast.building.build_file import BuildFile, load, read
from precast.building.build_job import Job
from precast.building.build_order import Lines
from precast.building.farm.engines import connect
from precast.building.farm.executor import place_of
from precast.building.farm.farm import Farm
from precast.building.ledger import Ledger
from tests.precast.building.silent import Silent
from tests.support.needs import needs

MODULE = """
import os
import torch

def f(x, n):
    return x.sin() * n + 1

def job(n, fatal=False):
    if fatal and not os.path.exists("MARK"):
        open("MARK", "w").close()
        os.kill(os.getpid(), 9)
    return f, [((torch.ones(8), n), {})]
"""
JOBS = 12


@pytest.fixture
def plan(tmp_path: Path) -> BuildFile:
    (tmp_path / "farm_programs.py").write_text(MODULE.replace("MARK", str(tmp_path / "killed")))
    row = '[[program]]\nfactory = "farm_programs:job"\nname = "p{n}"\narguments = {{ n = {n}.5{fatal} }}\n'
    rows = (row.format(n=n, fatal=", fatal = true" if n == 6 else "") for n in range(JOBS))
    (tmp_path / "farm.toml").write_text('targets = ["cpu:x86-64-v3"]\n' + "".join(rows))
    return read(str(tmp_path / "farm.toml"))


def contents(store: Store) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Head, guards and body of each artifact by id, and all blobs."""
    manifests: list[Manifest] = list(store.manifests())
    blobs = {path.name: path.read_bytes() for path in (store.root / "objects").rglob("*") if path.is_file()}
    needed = {blob for manifest in manifests for blob in manifest.blobs}
    return {manifest.id: manifest._sections[:3] for manifest in manifests}, {name: blobs[name] for name in needed}


def built_on(url: str, plan: BuildFile, store: Store) -> Farm:
    lines = Lines(plan.programs)
    with closing(connect(place_of(url))) as engine:
        farm = Farm(plan.programs, plan.path, store, engine, Ledger(plan.programs, lines, Silent()), lines)
        outcomes = farm.run()
    assert [(outcome.program, outcome.status) for outcome in outcomes] == [(f"p{n}", "compiled") for n in range(JOBS)], outcomes
    summary = farm.summary()
    assert summary.again == 1
    assert [worker["state"] for worker in summary.workers].count("lost") == 1
    assert sum(worker["jobs"] for worker in summary.workers) == JOBS
    return farm


def built_here(plan: BuildFile, store: Store) -> None:
    for spec in plan.programs:
        assert Job(load(spec, plan.path), store).build(1, spec.targets[0]).status == "compiled"


def engines() -> list[Any]:
    return [pytest.param("dask://local?workers=2", id="dask"), pytest.param("ray://local?workers=2", id="ray", marks=pytest.mark.slow)]


@pytest.mark.parametrize("url", engines())
def test_a_farm_makes_what_one_process_makes(url: str, plan: BuildFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("distributed" if url.startswith("dask") else "ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    farm, here = Store.open(tmp_path / "farm"), Store.open(tmp_path / "here")
    built_on(url, plan, farm)
    built_here(plan, here)
    assert contents(farm) == contents(here) and len(contents(here)[0]) == JOBS
