"""Tests compile into stores of their own: none reads from the user's cache folder or writes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import precast

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_A_STORE = (
    "tests/ops/test_edges.py::test_edges[integers in between]",
    "tests/ops/test_index_range.py::test_negative_indices_count_from_the_end_where_eagers_do[take]",
    "tests/ops/test_refused_shapes.py::test_what_fits_is_still_our_own_code[index_add-False]",
    "tests/ops/test_refused_values.py::test_division_by_the_number_zero",
)
"""Tests that name no store."""
SEEN: list[str] = []


@pytest.mark.parametrize("number", [0, 1])
def test_each_test_has_a_store(number: int) -> None:
    folder = os.environ["PRECAST_STORE"]
    assert folder not in SEEN and not Path(folder).exists()
    SEEN.append(folder)
    precast.compile(lambda x: x + number, fullgraph=True)(torch.ones(3))
    assert list(Path(folder).rglob("*"))


def test_nothing_is_written_to_the_users_cache(tmp_path: Path) -> None:
    """A fresh pytest over tests that name no store, with a cache folder that can be looked at."""
    cache = tmp_path / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    environment.pop("PRECAST_STORE")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *WITHOUT_A_STORE]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 and f"{len(WITHOUT_A_STORE)} passed" in done.stdout, done.stdout[-2000:] + done.stderr[-1000:]
    assert not list(tmp_path.rglob("*precast*"))
