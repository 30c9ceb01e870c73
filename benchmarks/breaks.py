"""A program with three graph breaks: what a call costs, and how long a fresh process takes to its first answer, against torch.compile.

Calls: tensors of 8 elements, so that the time is what four graphs, three breaks and a function called in between cost besides computing.
precast, torch.compile (Inductor) and eager take turns in one process, block by block; the figure is the median over blocks, the spread
their quartiles. First answer: processes that have imported torch, the contender's package and the program, with everything compiled
before (precast's store; Inductor's and AOTAutograd's caches on disk), taking turns.

    python benchmarks/breaks.py [--blocks 40] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CALLS = 200
CONTENDERS = ("precast", "torch.compile", "eager")


def untraceable() -> int:
    """Something that no tracer follows, and that costs next to nothing."""
    return os.getppid()


def between(x: torch.Tensor) -> torch.Tensor:
    """Called between graphs, with a break of its own."""
    y = x.sin()
    untraceable()
    return y * 2


def three_breaks(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Four graphs: one of them, and one of the breaks, in the function that is called."""
    y = between(x * w)
    untraceable()
    y = (y + 1).cos()
    if y.sum() > 1e9:
        return y
    return y * w + x


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, generator=generator), torch.randn(8, generator=generator)


def prepare(contender: str, store: str) -> Callable[..., Any]:
    """The program as the contender runs it."""
    if contender == "eager":
        return three_breaks
    if contender == "torch.compile":
        return torch.compile(three_breaks)
    import precast

    compiled: Callable[..., Any] = precast.compile(three_breaks, store=store)
    return compiled


def per_call(blocks: int) -> dict[str, Any]:
    """Microseconds per call of each contender: median and quartiles over blocks that take turns."""
    args = inputs()
    with tempfile.TemporaryDirectory() as store:
        calls = {name: prepare(name, store) for name in CONTENDERS}
        want = three_breaks(*args)
        for call in calls.values():
            for _ in range(20):
                torch.testing.assert_close(call(*args), want)
        times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for _ in range(blocks):
            for name, call in calls.items():
                start = time.perf_counter()
                for _ in range(CALLS):
                    call(*args)
                times[name].append((time.perf_counter() - start) / CALLS * 1e6)
    return {name: _spread(values) for name, values in times.items()}


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}


def first_answer(contender: str, store: str) -> float:
    """Seconds of the first call in this process."""
    args = inputs()
    if contender == "precast":
        import precast  # noqa: F401 - importing is not what is measured
    else:
        from torch._inductor import compile_fx  # noqa: F401 - as above, with the tracer
    start = time.perf_counter()
    with torch.no_grad():
        prepare(contender, store)(*args)
    return time.perf_counter() - start


def child(arguments: list[str], folder: str) -> Any:
    """The JSON that this file prints as a fresh process."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def first_answers(rounds: int) -> dict[str, dict[str, Any]]:
    """Cold once, then warm: milliseconds of each round."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds + 1):
            for name in CONTENDERS[:2]:
                seconds = child(["--first", name, "--store", f"{folder}/store"], folder)
                figures = found.setdefault(name, {"warm": []})
                if turn == 0:
                    figures["cold"] = seconds * 1e3
                else:
                    figures["warm"].append(seconds * 1e3)
    return found


def report(calls: dict[str, Any], firsts: dict[str, dict[str, Any]]) -> str:
    """The tables, as Markdown."""
    lines = ["### Three graph breaks", "", "| | us per call (median) | quartiles |", "| --- | --- | --- |"]
    lines += [f"| {name} | {t['median']:.1f} | {t['low']:.1f} – {t['high']:.1f} |" for name, t in calls.items()]
    lines += ["", f"- ratio to torch.compile: {calls['precast']['median'] / calls['torch.compile']['median']:.2f}", ""]
    lines += ["| | first answer cold, ms | warm, ms (median) | warm, all rounds |", "| --- | --- | --- | --- |"]
    middle = {name: statistics.median(figures["warm"]) for name, figures in firsts.items()}
    for name, figures in firsts.items():
        rounds = ", ".join(f"{ms:.0f}" for ms in figures["warm"])
        lines.append(f"| {name} | {figures['cold']:.0f} | {middle[name]:.1f} | {rounds} |")
    ratio = middle["precast"] / middle["torch.compile"]
    lines += ["", f"- {'met' if ratio <= 0.1 else 'NOT met'}: warm first answer {ratio:.3f} of torch.compile's, limit 0.1"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--first", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--calls", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.first:
        print(json.dumps(first_answer(args.first, args.store)))
        return 0
    if args.calls:
        with torch.no_grad():
            print(json.dumps(per_call(args.blocks)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        calls = child(["--calls", "--blocks", str(args.blocks)], folder)
    firsts = first_answers(args.rounds)
    print(report(calls, firsts))
    if args.json:
        args.json.write_text(json.dumps({"calls": calls, "first": firsts}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
