"""Tiny transformers architectures against eager, with graphs and breaks counted as torch.compile has them, and from the store in a fresh
process: a sample in CI; by `make test-full` all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.zoo_hf import ARCHITECTURES, SAMPLE
from tests.models.zoo_run import BACKENDS, failures, judge, row, served, table
from tests.support.processes import selected


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each architecture of the sample leaves its store."""
    return tmp_path_factory.mktemp("zoo")


@pytest.mark.parametrize("name", SAMPLE)
def test_agrees_with_eager_in_no_more_graphs_than_torch_compile(name: str, sample: Path) -> None:
    """torch.compile only traces here: what it traces does not depend on what compiles it."""
    ours, theirs = judge(name, "precast", sample / name), judge(name, "eager", sample)
    assert ours.difference == "" and ours.graphs > 0, ours
    assert theirs.difference == "" and failures([(ours, theirs)]) == [], (ours, theirs)


def test_the_sample_from_the_store_without_the_tracer(sample: Path, request: pytest.FixtureRequest) -> None:
    """One fresh process for all that the test above stored. Runs after it."""
    stored = selected(request, "test_agrees_with_eager_in_no_more_graphs_than_torch_compile")
    found = served(stored, sample, "transformers", "cpu", train=False)
    assert found == [""] * len(stored), found


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_all_of_them_as_torch_compile() -> None:
    """No fewer agree than of torch.compile, in no more graphs and breaks, and a fresh process serves each without the tracer."""
    rows = []
    for name in ARCHITECTURES:
        rows.append(row(name, BACKENDS, "transformers", "cpu", serve=True))
        print(next(iter(table(rows[-1:]))), flush=True)
    ours, theirs = zip(*rows, strict=True)
    assert sum(not found.difference for found in ours) >= sum(not found.difference for found in theirs)
    assert failures(rows) == []


def test_the_table_is_long_enough() -> None:
    assert len(ARCHITECTURES) >= 60 and set(SAMPLE) <= set(ARCHITECTURES)
