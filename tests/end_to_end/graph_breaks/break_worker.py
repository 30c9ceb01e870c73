"""Runs the cases of break_programs.py in one process; prints one JSON line per case. Started by test_breaks.py.

    break_worker.py STORE cold|warm|torch [NAME...]

cold: `precast.compile`. warm: `precast.load(require="hit")` with the tracer refused to precast. torch: `torch.compile` with a backend
that counts graphs.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.end_to_end.graph_breaks.break_programs import CASES, Case
from tests.support.refuse_tracer import refuse_tracer


def outcome(function: Callable[..., Any], state: Callable[[], Any], calls: Any) -> tuple[list[Any], Any, str]:
    """Results of all calls, the state afterwards, and what was printed, logged and warned."""
    printed, handler = io.StringIO(), logging.StreamHandler(io.StringIO())
    logger = logging.getLogger("break_programs")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    results = []
    try:
        with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True) as caught, torch.no_grad():
            warnings.simplefilter("always")
            torch.manual_seed(11)
            for args in calls:
                results.append(function(*args))
    finally:
        logger.removeHandler(handler)
    own = "Dynamo does not know how"  # begins a warning that torch.compile gives as well
    told = [f"{w.category.__name__}: {w.message}" for w in caught if own not in str(w.message)]
    return results, state(), "\n".join([printed.getvalue(), handler.stream.getvalue(), *told])


def clone(calls: Any) -> Any:
    return [tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args) for args in calls]


def run(case: Case, store: str, kind: str) -> dict[str, Any]:
    import precast

    torch.manual_seed(4)
    calls = case.calls()
    plain = case.make()
    want = outcome(plain, lambda: case.state(plain), clone(calls))
    fresh = case.make()
    if kind == "torch":
        return _torch(case, fresh, calls, want)
    store = f"{store}/{case.make.__name__}"
    count = counting()
    compiled = precast.load(fresh, store=store, require="hit") if kind == "warm" else precast.compile(fresh, store=store)
    got = outcome(compiled, lambda: case.state(fresh), clone(calls))
    torch.testing.assert_close(got[0], want[0], rtol=case.tolerance, atol=case.tolerance / 10)
    assert got[1] == want[1], f"left behind {got[1]!r}, eager leaves {want[1]!r}"
    assert got[2] == want[2], f"printed {got[2]!r}, eager prints {want[2]!r}"
    return {"graphs": len(count), "ran": ran(compiled)}


def ran(compiled: Any) -> list[str]:
    """The names of all programs of which a variant with a graph served a call."""
    from precast.runtime.api.compile import site_of

    return sorted({p.name for p in site_of(compiled).all_programs if any(v.hits and v.manifest.graphs for v in p.variants)})


def counting() -> list[str]:
    """Fills with the ids of artifacts with a graph that are compiled from now on."""
    from precast.runtime.programs.compile_hook import set_compiler

    found: list[str] = []

    def compile_variant(program: Any, args: Any, kwargs: Any) -> Any:
        from precast.compiling.driver import compile_variant

        made = compile_variant(program, args, kwargs)
        manifest = program.store.get(made, program.key) if isinstance(made, str) else made.manifest
        if manifest.graphs:
            found.append(manifest.artifact_id)
        return made

    set_compiler(compile_variant)
    return found


def _torch(case: Case, fresh: Any, calls: Any, want: Any) -> dict[str, Any]:
    count = 0

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(fresh, backend=backend)
    outcome(compiled, lambda: None, clone(calls))
    return {"graphs": count}


def main() -> None:
    store, kind, *names = sys.argv[1:]
    import precast  # noqa: F401 - before the refusal, as a server would

    attempts = refuse_tracer() if kind == "warm" else []
    for name in names or CASES:
        try:
            report = run(CASES[name], store, kind)
        except BaseException:  # noqa: BLE001 - the test shows it
            report = {"failed": traceback.format_exc()[-2500:]}
        print(json.dumps({"name": name, **report, "attempts": list(attempts)}), flush=True)


if __name__ == "__main__":
    main()
