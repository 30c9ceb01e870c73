"""Generated code, keys and guard sets are those that were recorded for this lowering version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precast.codegen.cpu import compile as cpu_pipeline
from precast.runtime.targets.versions import LOWERING_VERSION
from tests.replay.digest import RECORD, digest
from tests.replay.programs import ROWS

pytestmark = pytest.mark.skipif(not RECORD.exists(), reason=f"no digests are recorded for this torch and Python ({RECORD.name})")
ROOT = Path(__file__).parents[2]
HOW = "`python -m tests.replay.digest` records the digests anew"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(RECORD.read_text())
    return told


def test_the_record_is_of_this_lowering_version(recorded: dict[str, Any]) -> None:
    assert recorded["lowering"] == LOWERING_VERSION, f"{RECORD.name} is of lowering version {recorded['lowering']}: {HOW}"
    assert sorted(recorded["rows"]) == sorted(row.name for row in ROWS), f"the rows are not those that were recorded: {HOW}"


@pytest.fixture(scope="module")
def now() -> dict[str, Any]:
    """Of a process of its own: which way leads to an object of a library depends on what a process has imported before."""
    done = subprocess.run([sys.executable, "-m", "tests.replay.digest", "--print"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, Any] = json.loads(done.stdout)
    return made


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
def test_nothing_changed_without_a_new_version(row: Any, recorded: dict[str, Any], now: dict[str, Any]) -> None:
    now, then = now["rows"][row.name], recorded["rows"][row.name]
    changed = {
        f"{artifact}: {part}"
        for artifact in now.keys() | then.keys()
        for part in now.get(artifact, {}).keys() | then.get(artifact, {}).keys()
        if now.get(artifact, {}).get(part) != then.get(artifact, {}).get(part)
    }
    assert not changed, (
        f"{row.name}: what is stored of it is not what lowering version {LOWERING_VERSION} made ({', '.join(sorted(changed))}). "
        f"Where that is meant, artifacts of the old code must not be served: raise LOWERING_VERSION in runtime/targets/versions.py; {HOW}"
    )


def test_a_change_of_generated_code_is_seen(monkeypatch: pytest.MonkeyPatch, recorded: dict[str, Any]) -> None:
    monkeypatch.setattr(cpu_pipeline, "FAULT", cpu_pipeline.FAULT + "\n")
    row = ROWS[0]
    target = f"{row.targets[0]} units"
    assert digest(row)[target] != recorded["rows"][row.name][target]
