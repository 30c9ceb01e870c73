"""A training step of whole architectures: loss, results, the gradients of all parameters, and buffers, with dropout as configured. Compared
with eager, then served by a fresh process without the tracer. A sample in CI; all of them:
`python -m tests.models.zoo_run --train --serve`, and that with `--library vision`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import zoo_hf, zoo_vision
from tests.models.zoo_run import BACKENDS, failures, judge, row, served, table

SAMPLE = ("beit", "electra")
TABLES = {"transformers": zoo_hf.ARCHITECTURES, "vision": tuple(zoo_vision.MODELS)}


@pytest.mark.slow
def test_a_sample_and_from_the_store_without_the_tracer(tmp_path: Path) -> None:
    for name in SAMPLE:
        found = judge(name, "precast", tmp_path / name, train=True)
        assert found.difference == "" and found.graphs == 1 and found.breaks == 0, found
    assert served(SAMPLE, tmp_path, "transformers", "cpu", train=True) == ["", ""]


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("library", TABLES)
def test_all_of_them_as_torch_compile(library: str) -> None:
    """No fewer agree than of torch.compile, in no more graphs and breaks, and a fresh process serves each without the tracer."""
    rows = []
    for name in TABLES[library]:
        rows.append(row(name, BACKENDS, library, "cpu", serve=True, train=True))
        print(next(iter(table(rows[-1:]))), flush=True)
    ours, theirs = zip(*rows, strict=True)
    assert sum(not found.difference for found in ours) >= sum(not found.difference for found in theirs)
    assert failures(rows) == []
