"""All of torch's op_db, minutes to hours: precast against its stated pass list, and against Inductor on the same samples.

`PRECAST_OPDB_OUT=file.json` keeps the verdicts and resumes from them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.ops.opdb import compare_with_list, passing, run, summary
from tests.ops.opdb_judge import operators

SAMPLES = 2


def verdicts(ours: str, theirs: str, folder: Path) -> dict[str, Any]:
    """Of our backend on every operator: nothing wrong, and no fewer passes than theirs."""
    out = Path(os.environ.get("PRECAST_OPDB_OUT", folder / "opdb.json"))
    results = run([ours, theirs], list(operators()), SAMPLES, out=out)
    print("\n".join(summary(results)))
    assert not [name for name, v in results[ours].items() if v["verdict"] == "wrong"]
    assert len(passing(results[ours])) >= len(passing(results[theirs]))
    return results[ours]


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_all_operators_pass_as_stated_and_no_fewer_than_inductors(tmp_path: Path) -> None:
    assert not list(compare_with_list(verdicts("precast", "inductor", tmp_path)))


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_no_fewer_than_inductors_with_dynamic_shapes(tmp_path: Path) -> None:
    verdicts("precast-dynamic", "inductor-dynamic", tmp_path)
