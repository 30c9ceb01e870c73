"""How near predicted times are: small programs (kernel_rows.py), each step predicted from its record and measured.

    python benchmarks/predictions.py [--device cpu|cuda] [--rows REGEX] [--calls 10] [--seconds 500] [--json FILE]

A line has the sums over a program's steps: what was predicted, what was measured, and their quotient; the end has the quotients' quartiles
over programs and over steps. `--json` keeps each step with its record, so that another chip's record can be held against it later.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from kernel_rows import ROWS, KernelRow

ROWS_OF_ALL_KINDS = (
    "pointwise/(add|gelu tanh|transposed)|reductions/(few|columns|every)|norms/(layer norm of 768|group)|softmax/of (128|50257)|"
    "cross-entropy/of 32000|scans/cumsum of rows|convolutions/(2d|depthwise)|gathers/rows|attention/(plain|causal)|products/|joins/cat"
)


def profile_of(row: KernelRow, device: str, calls: int, store: Any) -> Any:
    from precast.building.build_file import Loaded, ProgramSpec
    from precast.profiling.profiler import profile

    program, inputs = row.make(device)
    spec = ProgramSpec("kernel_rows:row", row.name, "rows", train=row.train)
    return profile(Loaded(spec, program, ((inputs, {}),)), 1, store, calls=calls)


def quartiles(quotients: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(quotients, n=4) if len(quotients) > 1 else [*quotients] * 3
    return f"{low:.2f} {middle:.2f} {high:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", default=ROWS_OF_ALL_KINDS)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    import precast
    from precast.artifact_store import Store

    began = time.perf_counter()
    found: list[dict[str, Any]] = []
    sums: list[float] = []
    each: list[float] = []
    print(f"{'row':38}{'predicted':>11}{'measured':>11} us {'quotient':>9}  steps")
    for row in (row for name, row in ROWS.items() if re.search(given.rows, name)):
        if time.perf_counter() - began > given.seconds:
            print(f"ended after {given.seconds:.0f} s")
            break
        torch.manual_seed(0)
        precast.reset()
        with tempfile.TemporaryDirectory() as folder:
            one = profile_of(row, given.device, given.calls, Store.open(folder))
        steps = [step for graph in one.graphs for step in graph.steps]
        measured = sum(step.seconds for step in steps)
        expected = sum(step.predicted or 0.0 for step in steps)
        found.append({"row": row.label, "steps": [[asdict(step) for step in graph.steps] for graph in one.graphs]})
        if one.chip is not None and measured:
            sums.append(expected / measured)
            each += one.errors
            print(f"{row.label:38}{expected * 1e6:11.1f}{measured * 1e6:11.1f}    {expected / measured:9.2f}  {len(steps)}", flush=True)
        if given.device == "cuda":
            torch.cuda.empty_cache()
    if sums:
        print(f"predicted over measured, quartiles: of {len(sums)} programs {quartiles(sums)}; of {len(each)} steps {quartiles(each)}")
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
