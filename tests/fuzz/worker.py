"""Runs stored programs in a fresh process with the tracer refused to precast; prints one JSON line per program.

worker.py FOLDER    FOLDER holds `store` and NAME.json files: {"source": text, "seed": number, "dynamic": true or null,
"recorded": true where gradients are compared}
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.fuzz.judge import OPTIONS, compare
from tests.support.refuse_tracer import refuse_tracer


def main(folder: Path) -> None:
    import precast
    from precast.artifact_store import Store

    attempts = refuse_tracer()
    store = Store.open(folder / "store")
    for file in sorted(folder.glob("*.json")):
        case = json.loads(file.read_text())
        attempts.clear()
        options = {**OPTIONS, **({"dynamic": "yes"} if case["dynamic"] else {})}
        found, _ = compare(
            case["source"], file.stem, folder, lambda f, o=options: precast.load(f, store=store, options=o), case["seed"], case["recorded"]
        )
        print(json.dumps({"name": file.stem, "difference": found, "attempts": list(attempts)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
