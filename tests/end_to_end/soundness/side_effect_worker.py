"""Runs cases of side_effect_programs.py against eager, each with a store of its own; started by test_side_effects.py as a second process.

side_effect_worker.py STORES NAME...    prints one JSON line per case: what differs from eager, and how many graphs were compiled here
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
import tests.end_to_end.soundness.object_kind_programs  # noqa: F401 - its programs are cases as well
from tests.end_to_end.soundness.side_effect_programs import CASES, outcome

PARTS = ("results", "arguments", "closure", "attributes", "state", "random numbers", "printed", "warned")


def differences(name: str, compiled: Callable[[Any], Any]) -> list[str]:
    """How a case that runs through `compiled` differs from the same case in plain Python."""
    want, made = outcome(CASES[name]()), CASES[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a program is not compiled as a whole is the case's point
        got = outcome(made, compiled(made.function))
    return [f"{part}: expected {w}, got {g}" for part, w, g in zip(PARTS, want, got, strict=True) if w != g]


def main() -> None:
    stores, *names = sys.argv[1:]
    import precast
    from precast.runtime.programs.compile_hook import set_compiler

    compiled: list[str] = []

    def compile_variant(program: Any, args: Any, kwargs: Any) -> Any:
        from precast.compiling.driver import compile_variant

        compiled.append(program.name)
        return compile_variant(program, args, kwargs)

    set_compiler(compile_variant)
    for name in names:
        compiled.clear()
        try:
            found = differences(name, lambda f, name=name: precast.compile(f, store=f"{stores}/{name}"))  # type: ignore[misc]
        except Exception:  # noqa: BLE001 - the test shows it
            found = [traceback.format_exc()[-2000:]]
        print(json.dumps({"name": name, "differs": found, "compiled": list(compiled)}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
