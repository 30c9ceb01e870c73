"""Runs the cases of lookup_programs.py in one process; prints one JSON line per case. Started by test_lookups.py.

    lookup_worker.py STORE cold|warm|torch static|dynamic [NAME...]

cold: compiled first, then changed, then changed back. What is stored before the change is kept for the warm process: there the change
has happened before the first call. torch: as cold, through torch.compile's own door.
"""

from __future__ import annotations

import json
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.end_to_end.soundness.lookup_programs import CASES, Case, inputs

COMPILED: list[str] = []


def count_compiles() -> None:
    """COMPILED names what is compiled from now on."""
    from precast.runtime.programs.compile_hook import set_compiler

    def compile_variant(program: Any, args: Any, kwargs: Any) -> Any:
        from precast.compiling.driver import compile_variant

        COMPILED.append(program.name)
        return compile_variant(program, args, kwargs)

    set_compiler(compile_variant)


def agrees(compiled: Callable[..., Any], function: Callable[..., Any], sizes: int, when: str) -> None:
    """Three times: at first, as it was found then, and where the native checks have taken over."""
    for _ in range(3):
        for x in inputs()[:sizes]:
            torch.testing.assert_close(compiled(x), function(x), msg=lambda text: f"{when}: {text}")


def cold(case: Case, folder: Path, dynamic: bool) -> dict[str, Any]:
    import precast

    function, held = case.make()
    sizes = 1 + dynamic
    compiled = precast.compile(function, store=folder / "all", dynamic=True if dynamic else None)
    agrees(compiled, function, sizes, "as it was")
    shutil.copytree(folder / "all", folder / "before")
    case.put(held)
    try:
        said = str(precast.explain_miss(compiled, inputs()[0]))
        agrees(compiled, function, sizes, "changed")
        known = len(COMPILED)
    finally:
        case.away(held)
    agrees(compiled, function, sizes, "as it was again")
    return {"said": said, "compiled": known, "then": len(COMPILED) - known}


def warm(case: Case, folder: Path, dynamic: bool) -> dict[str, Any]:
    import precast

    function, held = case.make()
    compiled = precast.compile(function, store=folder / "before")
    case.put(held)
    try:
        agrees(compiled, function, 1, "changed before the first call")
        known = len(COMPILED)
    finally:
        case.away(held)
    agrees(compiled, function, 1, "as it was again")
    return {"compiled": known, "then": len(COMPILED) - known}


def torch_door(case: Case, folder: Path, dynamic: bool) -> dict[str, Any]:
    from precast.torch_backend import precast as backend

    torch._dynamo.reset()
    function, held = case.make()
    compiled = torch.compile(function, backend=lambda gm, examples: backend(gm, examples, store=folder / "torch"))
    agrees(compiled, function, 1, "as it was")
    case.put(held)
    try:
        agrees(compiled, function, 1, "changed")
    finally:
        case.away(held)
    agrees(compiled, function, 1, "as it was again")
    return {}


def main() -> None:
    store, kind, sizes, *names = sys.argv[1:]
    import precast  # noqa: F401 - before the count, as a server would

    count_compiles()
    work = {"cold": cold, "warm": warm, "torch": torch_door}[kind]
    for name in names or CASES:
        COMPILED.clear()
        folder = Path(store, sizes, name.replace(" ", "_"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if kind == "torch" else "error")
            warnings.filterwarnings("ignore", ".*functools.lru_cache")
            try:
                with torch.no_grad():
                    report = work(CASES[name], folder, sizes == "dynamic")
            except BaseException:  # noqa: BLE001 - the test shows it
                report = {"failed": traceback.format_exc()[-2500:]}
        print(json.dumps({"name": name, **report}), flush=True)


if __name__ == "__main__":
    main()
