"""The steady state alone, with many threads: every contender on every row in one run, prepared side by side and timed one at a time.

Rivals compile at the same time, on all cores, since their compilers measure nothing by default; precast's choices are measured, so its
programs are compiled one after the other when the rivals are done. Then each row's contenders take turns, a block of calls each, as in
`run.py`. Every process stays alive and holds its model: six rows with four contenders take about 20 GiB.

    python benchmarks/threads.py --threads 8 [--rows gpt2,bert] [--contenders inductor,precast] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import report
import torch
from contenders import CONTENDERS, names_of
from rounds import Failed, Plan, Process, Result, steady_rounds
from rows import DEFAULT_ROWS, ROWS

DEFAULT = "eager,inductor,freezing,precast,precast_freeze"
Place = tuple[str, str]
"""A row and a contender."""


def _start(place: Place, folder: Path, plan: Plan, result: Result) -> Process | None:
    """A process that has made its first call."""
    row, contender = place
    cache = folder / row / contender
    cache.mkdir(mode=0o700, parents=True)
    try:
        process = Process(row, contender, cache, plan)
        result.cold = process.ask("first")["seconds"]
        return process
    except Failed as failure:
        result.error = str(failure)
        return None


def _table(row: str, results: dict[str, Result]) -> str:
    ours = report.steady(results["precast"]) if "precast" in results else None
    body = []
    for name, result in results.items():
        time_ = report.steady(result)
        ratio = f"{time_ / ours:.2f}" if time_ and ours else "–"
        shown = f"failed: {result.error[:80]}" if result.error else "–" if time_ is None else f"{time_ * 1e3:.1f}"
        quiet = f"{sum(result.quiet)} of {len(result.quiet)}"
        body.append([CONTENDERS[name].title, shown, f"±{report.spread(result) * 100:.0f} %", ratio, quiet])
    return f"### {ROWS[row].title}\n\n{report.table(['', 'steady ms', 'spread', '÷ precast', 'quiet blocks'], body)}\n"


def measure(places: list[Place], plan: Plan) -> dict[str, dict[str, Result]]:
    """Steady figures of each row's contenders; a contender that fails keeps its sentence, and the others go on."""
    results: dict[str, dict[str, Result]] = {row: {} for row, _ in places}
    for row, contender in places:
        results[row][contender] = Result()
    folder = Path(tempfile.mkdtemp(prefix="precast-threads-"))
    processes: dict[Place, Process | None] = {}

    def start(place: Place) -> None:
        begin = time.perf_counter()
        processes[place] = _start(place, folder, plan, results[place[0]][place[1]])
        print(f"{place[0]}: {place[1]} is there after {time.perf_counter() - begin:.0f} s", file=sys.stderr, flush=True)

    try:
        with ThreadPoolExecutor(max_workers=len(places)) as pool:
            list(pool.map(start, [place for place in places if not CONTENDERS[place[1]].ours]))
        for place in places:
            if CONTENDERS[place[1]].ours:
                start(place)
        for row, found in results.items():
            alive = {name: process for name in found if (process := processes[row, name]) is not None}
            steady_rounds(alive, found, plan)
            print(_table(row, found), flush=True)
    finally:
        for process in processes.values():
            if process is not None:
                process.close()
        shutil.rmtree(folder, ignore_errors=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--rows", default=",".join(DEFAULT_ROWS))
    parser.add_argument("--contenders", default=DEFAULT)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    args = parser.parse_args()
    rows, contenders = names_of(args.rows, ROWS, "row"), names_of(args.contenders, CONTENDERS, "contender")
    print(f"## {args.threads} threads of {os.cpu_count()} CPUs, torch {torch.__version__}\n", flush=True)
    results = measure([(row, contender) for row in rows for contender in contenders], Plan(args.threads, rounds=args.rounds))
    print("\n".join(report.steady_bars(results, 1.0)))
    if args.json:
        args.json.write_text(json.dumps({row: {name: asdict(r) for name, r in found.items()} for row, found in results.items()}))
    return 1 if any(result.error for found in results.values() for result in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
