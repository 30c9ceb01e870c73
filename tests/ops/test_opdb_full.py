"""All of torch's op_db, minutes to hours: precast against its stated pass list, and against Inductor on the same samples.

`PRECAST_OPDB_OUT=file.json` keeps the verdicts and resumes from them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ops.opdb import compare_with_list, passing, run, summary
from tests.ops.opdb_judge import operators

SAMPLES = 2


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_all_operators_pass_as_stated_and_no_fewer_than_inductors(tmp_path: Path) -> None:
    out = Path(os.environ.get("PRECAST_OPDB_OUT", tmp_path / "opdb.json"))
    results = run(["precast", "inductor"], list(operators()), SAMPLES, out=out)
    print("\n".join(summary(results)))
    assert not list(compare_with_list(results["precast"]))
    assert not [name for name, v in results["precast"].items() if v["verdict"] == "wrong"]
    assert len(passing(results["precast"])) >= len(passing(results["inductor"]))


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_no_fewer_than_inductors_with_dynamic_shapes(tmp_path: Path) -> None:
    out = Path(os.environ.get("PRECAST_OPDB_OUT", tmp_path / "opdb.json"))
    results = run(["precast-dynamic", "inductor-dynamic"], list(operators()), SAMPLES, out=out)
    print("\n".join(summary(results)))
    assert not [name for name, v in results["precast-dynamic"].items() if v["verdict"] == "wrong"]
    assert len(passing(results["precast-dynamic"])) >= len(passing(results["inductor-dynamic"]))
