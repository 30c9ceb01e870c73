"""A constant that is another one in each process: named, and no endless number of artifacts."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.compiling import unstable_constants
from precast.runtime.api.compile import site_of

START = 0
OTHER = 0


@torch._dynamo.allow_in_graph
def stamped(x: torch.Tensor) -> torch.Tensor:
    return x + START + OTHER


def program(x: torch.Tensor) -> torch.Tensor:
    return stamped(x) * 2


@torch.no_grad()
def process(store: Path, start: int) -> list[str]:
    """What a process with this constant warns of."""
    global START
    START = start
    precast.reset()
    compiled = precast.compile(program, store=store, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert compiled(torch.zeros(2))[0] == 2 * start
    (variant,) = [variant for variant in site_of(compiled).programs[0].variants if variant.hits]
    assert variant.stored == (not caught)
    return [str(warning.message) for warning in caught]


def test_beyond_a_few_artifacts_it_stays_in_the_process_and_the_constant_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unstable_constants, "LIMIT", 2)

    def count() -> int:
        (key,) = Store(tmp_path).programs()
        return len(Store(tmp_path).variants(key))

    assert not process(tmp_path, 1) and not process(tmp_path, 2) and count() == 2
    (said,) = process(tmp_path, 3)
    where = f"START (read by {__name__}.stamped)"
    assert said.startswith("precast:") and "is kept in this process: the store has 2 artifacts of it that differ" in said
    assert where in said and "OTHER" not in said and "list or dict" in said and count() == 2
    assert not process(tmp_path, 1)  # one that is there is found
