"""`python -m precast.torch_facts.record`: writes the digests of what is patched in the torch at hand beside those of other releases."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from precast.runtime.common.supported_torch import minor_of
from precast.torch_facts.patched import RECORD, patched_names, source_digest


def main() -> None:
    """Other releases' digests stay; what is patched in none of them any more is dropped by hand."""
    file = Path(__file__).with_name(RECORD)
    known: dict[str, dict[str, str]] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    minor = minor_of(torch.__version__)
    for releases in known.values():
        releases.pop(minor, None)
    for name in patched_names():
        if digest := source_digest(name):
            known.setdefault(name, {})[minor] = digest
    kept = {name: dict(sorted(releases.items())) for name, releases in sorted(known.items()) if releases}
    file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    print(f"{file}: {sum(minor in releases for releases in kept.values())} functions of torch {torch.__version__}")


if __name__ == "__main__":
    main()
