"""Tiny transformers architectures against eager: a sample in CI; by `make test-full` all, with graphs counted as torch.compile has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.zoo_hf import ARCHITECTURES, SAMPLE
from tests.models.zoo_run import judge, table


@pytest.mark.parametrize("name", SAMPLE)
def test_agrees_with_eager(name: str, tmp_path: Path) -> None:
    found = judge(name, "precast", tmp_path)
    assert found.difference == "" and found.graphs > 0, found


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_all_of_them_as_torch_compile(tmp_path: Path) -> None:
    rows = [(judge(name, "precast", tmp_path / name), judge(name, "inductor", tmp_path)) for name in ARCHITECTURES]
    print("\n".join(table(rows)))
    ours, theirs = zip(*rows, strict=True)
    assert not [found for found in ours if found.wrong], "a wrong result"
    assert sum(not found.difference for found in ours) >= sum(not found.difference for found in theirs)
    assert not [(a, b) for a, b in rows if not a.difference and not b.difference and a.graphs > b.graphs], "more graphs than torch.compile"


def test_the_table_is_long_enough() -> None:
    assert len(ARCHITECTURES) >= 60 and set(SAMPLE) <= set(ARCHITECTURES)
