"""One artifact for every length: dynamic artifacts against static ones and against torch.compile(dynamic=True).

For each row the model is compiled three times in one process: precast with fixed sizes, precast with `dynamic=True`, torch.compile with
`dynamic=True`. Steady state: single calls at the row's own size, interleaved (A B C A B C …), the median of each. Then every contender
answers `--lengths` different sequence lengths; what is printed is how many graphs it compiled in all and the seconds for those calls.

    python benchmarks/dynamic.py [--rows gpt2 bert llama] [--rounds 20] [--lengths 64] [--threads N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rows import Inputs, build, first_tensor

import precast
from precast.artifact_store import Store

Call = Callable[..., Any]
ROWS = ("gpt2", "bert", "llama")
LONGEST = 192
"""The longest sequence of the second part; GPT-2 and BERT take up to 1024 and 512."""


class Counter:
    """A Dynamo backend that counts what it hands to Inductor."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        return compile_fx(graph, inputs)


def artifacts(store: str) -> int:
    """Stored artifacts, as files."""
    opened = Store.open(store, readonly=True)
    return sum(len(opened.manifest_names(key)) for key in opened.programs())


def resized(inputs: Inputs, length: int) -> Inputs:
    """The row's inputs at another sequence length."""
    generator = torch.Generator().manual_seed(length)
    sizes = {name: (t.shape[0], length) for name, t in inputs.items()}
    return {n: torch.randint(0, 500, sizes[n], generator=generator) if n == "input_ids" else torch.ones(sizes[n], dtype=t.dtype)
            for n, t in inputs.items()}  # fmt: skip


def steady(calls: dict[str, Call], inputs: Inputs, rounds: int) -> dict[str, float]:
    """Median milliseconds of one call of each contender, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call(**inputs)
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(found) for name, found in times.items()}


def measure(row: str, rounds: int, lengths: int) -> dict[str, Any]:
    """All figures of one row."""
    model, inputs = build(row)
    counter = Counter()
    with tempfile.TemporaryDirectory() as fixed, tempfile.TemporaryDirectory() as varying:
        calls: dict[str, Call] = {
            "static": precast.compile(model, dynamic=False, store=fixed),
            "dynamic": precast.compile(model, dynamic=True, store=varying),
            "torch": torch.compile(model, dynamic=True, backend=counter),
        }
        want = first_tensor(model(**inputs))
        for name, call in calls.items():
            for _ in range(3):
                got = first_tensor(call(**inputs))
            torch.testing.assert_close(got, want, atol=2e-3, rtol=2e-3, msg=lambda m, name=name: f"{name}: {m}")
        medians = steady(calls, inputs, rounds)
        chosen = sorted({2 + round(k * (LONGEST - 2) / max(lengths - 1, 1)) for k in range(lengths)})
        spent: dict[str, float] = {}
        for name in ("dynamic", "torch"):
            begin = time.perf_counter()
            for length in chosen:
                calls[name](**resized(inputs, length))
            spent[name] = time.perf_counter() - begin
        count = {"dynamic": artifacts(varying), "torch": counter.graphs}
    return {"row": row, "ms": medians, "lengths": len(chosen), "seconds": spent, "compiled": count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--lengths", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = []
    print(f"{'row':8} {'static':>9} {'dynamic':>9} {'torch':>9}  dynamic/static  torch/dynamic   lengths: graphs and seconds")
    with torch.no_grad():
        for row in arguments.rows:
            result = measure(row, arguments.rounds, arguments.lengths)
            found.append(result)
            ms, seconds, compiled = result["ms"], result["seconds"], result["compiled"]
            print(
                f"{row:8} {ms['static']:6.2f} ms {ms['dynamic']:6.2f} ms {ms['torch']:6.2f} ms  {ms['dynamic'] / ms['static']:14.3f}"
                f"  {ms['torch'] / ms['dynamic']:13.2f}   {result['lengths']}: {compiled['dynamic']} in {seconds['dynamic']:.2f} s, "
                f"torch {compiled['torch']} in {seconds['torch']:.2f} s",
                flush=True,
            )
    ratios = [r["ms"]["torch"] / r["ms"]["dynamic"] for r in found]
    print(f"geomean torch/dynamic {math.prod(ratios) ** (1 / len(ratios)):.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
