"""Serves what test_dynamic.py has stored, while no frame of precast may import the tracer; prints one JSON line per sequence of calls.

dynamic_worker.py FOLDER    FOLDER holds a store for each "NAME OF THE SEQUENCE, DYNAMIC"
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.end_to_end.dynamic.dynamic_programs import SEQUENCES
from tests.support.refuse_tracer import refuse_tracer

OPTIONS = {"None": {}, "True": {"dynamic": "yes"}, "False": {"dynamic": "no"}}


def serve(store: Path) -> str:
    """How the calls of one sequence differ from eager ones; empty where they agree."""
    import precast

    name, _, dynamic = store.name.rpartition(", ")
    function, calls = SEQUENCES[name]
    loaded = precast.load(function, store=store, require="hit", options=OPTIONS[dynamic])
    try:
        for args in calls():
            torch.testing.assert_close(loaded(*args), function(*args))
    except Exception:  # noqa: BLE001 - the test shows it
        return traceback.format_exc()[-2000:]
    return ""


def main(folder: Path) -> None:
    import precast  # noqa: F401 - before the refusal, as a server would

    attempts = refuse_tracer()
    for store in sorted(folder.iterdir()):
        attempts.clear()
        with torch.no_grad():
            print(json.dumps({"name": store.name, "failed": serve(store), "attempts": list(attempts)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
