"""The refusal that warm tests rest on refuses both ways of importing, and precast's frames only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import REFUSE, child

WAYS = {
    "statement": "import sympy",
    "from": "from precast import lowering",
    "importlib": "import importlib\nimportlib.import_module('torch._dynamo')",
}


@pytest.mark.parametrize("way", WAYS)
def test_precast_may_not_import_the_tracer_and_others_may(way: str, tmp_path: Path) -> None:
    run = f"exec({WAYS[way]!r}, {{'__name__': NAME}})"
    said = child(tmp_path, f"import precast\n{REFUSE}\nrefuse_tracer()\nNAME = 'precast.runtime.dispatch.call_site'\n{run}", expect=1)
    assert "AssertionError: precast.runtime.dispatch.call_site imports" in said and "on the warm path" in said
    if way == "statement":
        child(tmp_path, f"{REFUSE}\nrefuse_tracer()\nNAME = 'someone'\n{run}")
