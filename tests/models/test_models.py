"""Real architectures: compiled, then served by a fresh process from the store, always against eager."""

from __future__ import annotations

from typing import Any

import pytest

Reports = dict[str, dict[str, Any]]
pytestmark = pytest.mark.xdist_group("models")
TOLERANCE = 2e-4
COMPILER_SECONDS = 1.0
SHARED_MACHINE = 4.0


def _check(report: dict[str, Any]) -> None:
    assert "failed" not in report, report["failed"]
    assert report["type"] == report["eager_type"]
    assert report["eager_difference"] < TOLERANCE, report
    # no worse than eager, both against float64; a few roundings of freedom, since the order of a sum is not promised
    assert report["error"] < 4 * report["eager_error"] + 1e-6, report


def test_compiled_matches_eager(cold: Reports, name: str) -> None:
    _check(cold[name])


def test_the_cpp_compiler_is_quick(cold: Reports, name: str) -> None:
    """CPU seconds, graph by graph: another load on the machine makes them somewhat longer, by the caches and cores that are shared."""
    spent = cold[name]["compiler"]
    assert spent and max(spent) < COMPILER_SECONDS * SHARED_MACHINE, spent


def test_served_from_the_store_without_tracer_or_compiler(warm: Reports, name: str) -> None:
    _check(warm[name])
    assert warm[name]["attempts"] == []
