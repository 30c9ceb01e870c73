"""Scans, sorts and searches along a symbolic dimension: one artifact for many lengths, one for 1, one for 0; also in a fresh process."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import precast
from precast.artifact_store import Store
from precast.runtime.api.compile import site_of
from tests.support.processes import REFUSE, child, selected

PROGRAM = """
import torch


def cumsum(x):
    return torch.cumsum(x, -1), torch.cumsum(x * 2, 0)


def cumprod(x):
    return torch.cumprod(x.sigmoid() + 0.5, -1)


def cummax(x):
    return (*torch.cummax(x, -1), *torch.cummin(x, -1))


def logcumsumexp(x):
    return torch.logcumsumexp(x, -1)


def sort(x):
    return (*torch.sort(x, dim=-1, stable=True), torch.argsort(x + 1, dim=-1, descending=True, stable=True))


def topk(x):
    k = min(x.size(-1), 2)
    return (*torch.topk(x, k, -1), *torch.topk(x, k, -1, largest=False))


def searchsorted(x):
    edges = torch.sort(x[0]).values
    return torch.searchsorted(edges, x), torch.searchsorted(edges, x + 0.25, right=True), torch.bucketize(x, edges)


def ranks(x):
    return torch.cumsum(torch.sort(x, -1).values, -1) - x.cummax(-1).values


PROGRAMS = (cumsum, cumprod, cummax, logcumsumexp, sort, topk, searchsorted, ranks)
LENGTHS = (7, 2, 3, 8, 16, 33, 64, 5, 130)
SHORT = (1, 0)


def agree(compiled, function, length):
    x = torch.randn(3, length)
    for got, want in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(got, want, msg=lambda text: f"{function.__name__} of length {length}: {text}")
"""
SERVED = (
    REFUSE
    + """
import json
import precast
import order_programs as programs

attempts, missed = refuse_tracer(), []
with programs.torch.no_grad():
    for function in programs.PROGRAMS:
        served = precast.load(function, store="store", options={"dynamic": "yes", "fullgraph": True})
        for length in (*programs.LENGTHS, *programs.SHORT, 99):
            try:
                programs.agree(served, function, length)
            except precast.GuardMiss:
                missed.append([function.__name__, length])
print(json.dumps([attempts, missed]))
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("order")
    (folder / "order_programs.py").write_text(PROGRAM)
    return folder


@pytest.fixture
def programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("order_programs")


NAMES = ("cumsum", "cumprod", "cummax", "logcumsumexp", "sort", "topk", "searchsorted", "ranks")


@pytest.mark.parametrize("name", NAMES)
def test_one_artifact_for_every_length(name: str, folder: Path, programs: Any) -> None:
    """A length of 1 and one of 0 have an artifact each, as torch has a graph for each."""
    function: Callable[..., Any] = getattr(programs, name)
    store = Store.open(folder / "store")
    compiled = precast.compile(function, store=store, dynamic=True, fullgraph=True)
    for length in programs.LENGTHS:
        programs.agree(compiled, function, length)
    assert len(site_of(compiled).programs[0].variants) == 1
    for length in programs.SHORT:
        programs.agree(compiled, function, length)
    assert len(site_of(compiled).programs[0].variants) <= 3


def test_from_the_store_without_the_tracer(folder: Path, programs: Any, request: pytest.FixtureRequest) -> None:
    """All of them and a length that no process has seen, in one fresh process. Runs after the test above."""
    assert tuple(f.__name__ for f in programs.PROGRAMS) == NAMES
    attempts, missed = json.loads(child(folder, SERVED))
    assert attempts == []
    store = Store.open(folder / "store")
    stored = {manifest.program_name for key in store.programs() for manifest in store.variants(key)}
    assert stored == {f"order_programs:{name}" for name in selected(request, "test_one_artifact_for_every_length")}
    assert [pair for pair in missed if f"order_programs:{pair[0]}" in stored] == []
