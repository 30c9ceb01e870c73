"""The fault table: what a fleet's cache does when everything goes wrong, cycle by cycle, from real runs.

    python benchmarks/remote/faults.py [--rows PART,PART] [--scale 1.0] [--seed 1] [--json FILE] [--list] [--warm]

Each row breaks one thing, at random places (the seed decides), and then reads as a warm start does. Counted are wrong answers, crashes of
the caller, and artifacts that were reported as stored and are not there any more; all have to be 0, and the exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fault_rows_local
import fault_rows_remote
from fault_tools import Row, Tally, run_row


def all_rows() -> Mapping[str, tuple[Row, int]]:
    """Each row by its name, with its cycles."""
    import fault_rows_programs  # torch comes with it: after the children's server has started

    return {**fault_rows_local.ROWS, **fault_rows_remote.ROWS, **fault_rows_programs.ROWS}


def table(found: Mapping[str, Tally]) -> str:
    """As Markdown."""
    lines = ["| fault | cycles | served whole | wrong | crashed | lost | seconds |", "|---|--:|--:|--:|--:|--:|--:|"]
    for name, tally in found.items():
        figures = (tally.cycles, tally.served, tally.wrong, tally.crashed, tally.lost, f"{tally.seconds:.0f}")
        lines.append(f"| {name} | {' | '.join(map(str, figures))} |")
    total = [sum(getattr(tally, name) for tally in found.values()) for name in ("cycles", "served", "wrong", "crashed", "lost")]
    lines.append(f"| **all** | {' | '.join(f'**{number}**' for number in total)} | {sum(t.seconds for t in found.values()):.0f} |")
    return "\n".join(lines)


def warm() -> int:
    """The exit code: 1 where the p99 with a dead remote is more than a quarter above that without one."""
    from fault_rows_programs import warm_calls

    found = warm_calls()
    print("| a warm call, µs | p50 | p99 | p99.9 |\n|---|--:|--:|--:|")
    for name, figures in found.items():
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in figures.values())} |")
    return 0 if max(figures["p99"] for figures in found.values()) <= 1.25 * found["no remote"]["p99"] else 1


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description="the fault table")
    parser.add_argument("--rows", default="", help="parts of rows' names, with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="how many times the usual cycles")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--warm", action="store_true", help="only what a warm call takes, with and without a remote that is dead")
    given = parser.parse_args()
    rows = {name: row for name, row in all_rows().items() if any(part in name for part in given.rows.split(","))}
    if given.list:
        print("\n".join(f"{cycles}\t{name}" for name, (_, cycles) in rows.items()))
        return 0
    if given.warm:
        return warm()
    logging.getLogger("precast").addHandler(logging.NullHandler())
    logging.getLogger("precast").propagate = False
    found: dict[str, Tally] = {}
    for name, (row, cycles) in rows.items():
        found[name] = tally = run_row(row, max(1, round(cycles * given.scale)), given.seed)
        summary = f"{tally.cycles} cycles in {tally.seconds:.0f} s, wrong {tally.wrong}, crashed {tally.crashed}, lost {tally.lost}"
        print(f"{name}: {summary} {dict(tally.events)}", file=sys.stderr, flush=True)
        for text in tally.why:
            print(f"    {text}", file=sys.stderr, flush=True)
    print(table(found))
    if given.json is not None:
        rows = {name: {**vars(tally), "events": dict(tally.events)} for name, tally in found.items()}
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(tally.good for tally in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
