"""Runs models of the zoo through precast in one process; prints one JSON line per model. Started by test_models.py.

    worker.py STORE cold|warm NAME...

cold: `precast.compile`. warm: `precast.load(require="hit")`, after which no frame of precast may import the tracer
(tests/support/refuse_tracer.py).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from zoo import build, tensors

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.refuse_tracer import refuse_tracer


def largest_difference(got: Any, want: Any) -> float:
    """Largest absolute difference over all tensors of two outputs; infinity when their structure or shapes differ."""
    a, b = tensors(got), tensors(want)
    if len(a) != len(b) or any(x.shape != y.shape for x, y in zip(a, b, strict=True)):
        return float("inf")
    return worst([float((x.double() - y.double()).abs().max()) for x, y in zip(a, b, strict=True)])


def worst(differences: list[float]) -> float:
    """The largest; NaN where any is NaN, which Python's `max` says of the first one only."""
    return float("nan") if any(d != d for d in differences) else max(differences)


def timed_compiler() -> list[float]:
    """From now on the list collects the CPU seconds of each run of the C++ compiler (of it and its children; waiting is not counted)."""
    from precast.codegen.cpu import compile as cpu_pipeline

    spent: list[float] = []
    plain = cpu_pipeline.compile_shared

    def timed(*unit: Any) -> bytes:
        before = os.times()
        library = plain(*unit)
        after = os.times()
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
        return library

    cpu_pipeline.compile_shared = timed
    return spent


def run(name: str, store: str, kind: str) -> dict[str, Any]:
    """One model: its first answer, a second one on other inputs of the same shape, and their distances from eager."""
    import precast

    model, inputs = build(name)
    start = time.perf_counter()
    compiled = precast.load(model, store=store, require="hit") if kind == "warm" else precast.compile(model, store=store)
    got = compiled(**inputs)
    seconds = time.perf_counter() - start
    other = {k: v.flip(0) if k != "attention_mask" else v for k, v in inputs.items()}
    report = {"name": name, "seconds": seconds, "type": type(got).__name__, "eager_type": type(model(**inputs)).__name__}
    report["eager_difference"] = worst([largest_difference(compiled(**x), model(**x)) for x in (inputs, other)])
    eager = model(**inputs)
    exact = model.double()(**{k: v.double() if v.is_floating_point() else v for k, v in inputs.items()})
    report["error"], report["eager_error"] = largest_difference(got, exact), largest_difference(eager, exact)
    return report


def main() -> None:
    store, kind, *names = sys.argv[1:]
    import precast  # noqa: F401 - before the refusal, as a server would

    attempts = refuse_tracer() if kind == "warm" else []
    if kind == "cold":
        from precast.artifact_store import Store
        from precast.runtime.native import loader

        loader.ensure(Store(Path(store)))  # its compiler would count as the first graph's
    compiler = timed_compiler() if kind == "cold" else []
    for name in names:
        compiler.clear()
        with torch.no_grad():
            try:
                report = run(name, store, kind)
            except Exception as error:  # noqa: BLE001 - the test shows it
                report = {"name": name, "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps({**report, "attempts": list(attempts), "compiler": list(compiler)}), flush=True)


if __name__ == "__main__":
    main()
