"""The whole op table through lowering, scheduling and Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tests.ops.optable import ROWS

ROOT = Path(__file__).resolve().parents[3]
IDS = [row.id for row in ROWS]
OTHERWISE = {
    "cumsum/long-f32": "eager's running sum on a CPU is in double precision",
    "conv2d/plain-bf16": "rounded before the bias is added, as eager on a GPU does",
    "conv2d/1x1-bf16": "likewise",
    "conv2d/relu-bf16": "likewise",
    "digamma/subnormal-bf16": "the interpreter widens subnormal bfloat16 wrongly",
}
NESTED = {
    "cross_entropy-f32",
    "cross_entropy-f64",
    "cross_entropy/2d-f32",
    "cross_entropy/ignore-f32",
    "kl_div-f32",
    "nll_loss-f32",
}
"""Rows whose reductions stand inside one another once short ones are not written out."""


SHARES = [pytest.param(6, id="a sixth"), pytest.param(1, id="all", marks=pytest.mark.slow)]
"""Every sixth row, or each."""


def run_worker(which: str, every: int = 1) -> dict[str, str]:
    """Row id to failure, from a process in which Triton was imported as an interpreter."""
    environment = {"PRECAST_TEST_SEED": "5", **os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.codegen.triton.interpret_worker", which, str(every)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout.splitlines()[-1])["results"]
    assert isinstance(results, dict)
    return results


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[str, str]:
    """Of every other row, unless rows are wanted that only run by command."""
    rows = {item.callspec.params["row_id"] for item in request.session.items if item.originalname == "test_row"}  # type: ignore[attr-defined]
    return run_worker("all", 2 if rows <= set(IDS[::2]) else 1)


OLD_TRITON = metadata.version("triton").startswith("3.6.")
REPEATED = pytest.mark.xfail(
    OLD_TRITON, reason="where addresses repeat, Triton 3.6's interpreter adds a scalar once; its compiler does not"
)

NO_SCALARS = pytest.mark.xfail(
    OLD_TRITON and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="Triton 3.6's interpreter takes a loop's bound out of an array of one element as NumPy 2.4 does no more",
)


def _marks(row_id: str) -> list[pytest.MarkDecorator]:
    return ([REPEATED] if row_id == "scatter_reduce/mean-f32" else []) + ([] if row_id in IDS[::2] else [pytest.mark.slow])


@pytest.mark.parametrize("row_id", [pytest.param(i, marks=_marks(i)) for i in IDS if i not in OTHERWISE])
def test_row(row_id: str, results: dict[str, str]) -> None:
    assert results[row_id] == ""


@NO_SCALARS
@pytest.mark.parametrize("every", SHARES)
def test_symbolic_sizes(every: int) -> None:
    """Sizes that are arguments of the kernels: same results."""
    results = run_worker("symbolic", every)
    assert not {row: failure for row, failure in results.items() if failure and row not in OTHERWISE}
    assert len(results) >= 250 // every


@pytest.mark.parametrize("every", SHARES)
def test_looped_reductions(every: int) -> None:
    """With blocks of 8 lanes every reduction takes several steps of a loop: same results."""
    results = run_worker("looped", every)
    refused = {row for row, failure in results.items() if failure.startswith("refused") and "nothing is reduced" not in failure}
    wrong = {row: failure for row, failure in results.items() if failure and not failure.startswith("refused") and row not in OTHERWISE}
    assert not wrong
    assert refused == NESTED & results.keys()
    assert sum(not failure for failure in results.values()) >= 260 // every
