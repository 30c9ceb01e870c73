"""Upstream's ways to keep what was compiled, beside precast's. See docs/upstream.md.

python benchmarks/upstream [--rows gpt2,bert] [--ways precompile,aot_compile,precast_load] [--abilities] [--assumptions] [--timings]
    [--cases checkpoint_after,…] [--other-python PATH] [--warm 3] [--rounds 5] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import tables  # noqa: E402  after the path, as rows.py lies beside this folder
import torch  # noqa: E402
from cases import ABILITIES, ASSUMPTIONS, CASES, Case  # noqa: E402
from contenders import names_of  # noqa: E402
from processes import Settings, outcomes  # noqa: E402
from rows import DEFAULT_ROWS, ROWS  # noqa: E402
from timings import measure  # noqa: E402
from ways import WAYS  # noqa: E402


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/upstream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(DEFAULT_ROWS), help="models for --timings")
    parser.add_argument("--ways", help=f"of {', '.join(WAYS)}; all where none is named")
    parser.add_argument("--cases", help="only these cases of --abilities and --assumptions")
    parser.add_argument("--abilities", action="store_true", help="programs that are no models: which way can do them")
    parser.add_argument("--assumptions", action="store_true", help="what each way checks after a load, one change a row")
    parser.add_argument("--timings", action="store_true", help="models: whether, first answer, steady state, bytes")
    parser.add_argument("--other-python", type=Path, help="an interpreter with another torch, for the case other_torch")
    parser.add_argument("--warm", type=int, default=3, help="fresh processes for the first answer")
    parser.add_argument("--rounds", type=int, default=5, help="steady rounds")
    parser.add_argument("--block", type=float, default=0.5, help="seconds of a steady block")
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one process may take")
    parser.add_argument("--jobs", type=int, default=1, help="cases at once (never for timings)")
    parser.add_argument("--json", type=Path, help="write all figures here as well")
    parser.add_argument("--print", type=Path, nargs="+", help="run nothing: print the tables of such files")
    return parser.parse_args()


class Figures:
    """All results, written to a file as they come: a run that is cut short keeps what it has."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    def outcome(self, case: str, way: str, outcome: dict[str, Any]) -> None:
        """Take one case of one way."""
        with self.lock:
            self.outcomes.setdefault(case, {})[way] = outcome
            self._write()

    def row(self, row: str, results: dict[str, Any]) -> None:
        """Take one model."""
        with self.lock:
            self.rows[row] = results
            self._write()

    def read(self, path: Path) -> None:
        """Add what another run wrote."""
        figures = json.loads(path.read_text())
        for case, results in figures["outcomes"].items():
            self.outcomes.setdefault(case, {}).update(results)
        for row, results in figures["rows"].items():
            self.rows.setdefault(row, {}).update(results)

    def _write(self) -> None:
        if self.path:
            text = {"torch": torch.__version__, "threads": torch.get_num_threads(), "outcomes": self.outcomes, "rows": self.rows}
            self.path.write_text(json.dumps(text, indent=1))

    def print_outcomes(self, cases: Iterable[Case], ways: list[str]) -> None:
        """The table of those cases that were tried with every way."""
        whole = [case for case in cases if set(ways) <= set(self.outcomes.get(case.name, ()))]
        if whole:
            print(tables.outcome_table(whole, ways, self.outcomes), flush=True)


def main() -> int:
    """Run what was asked for, print a table each, and write everything as JSON."""
    given = _arguments()
    ways = names_of(given.ways, WAYS, "way") if given.ways else list(WAYS)
    tried = [w for w in ways if w != "eager"]
    figures = Figures(given.json)
    if given.print:
        for path in given.print:
            figures.read(path)
        for cases in (ABILITIES, ASSUMPTIONS):
            figures.print_outcomes(cases, tried)
        for row, results in figures.rows.items():
            print(tables.timing_table(row, results))
        return 0
    settings = Settings(given.timeout, given.other_python, given.jobs)
    everything = not (given.abilities or given.assumptions or given.timings or given.cases)
    print(f"## torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    for wanted, cases in ((given.abilities, ABILITIES), (given.assumptions, ASSUMPTIONS)):
        named = names_of(given.cases, CASES, "case") if given.cases else [case.name for case in cases if wanted or everything]
        if chosen := [case for case in cases if case.name in named]:
            outcomes(chosen, tried, settings, figures.outcome)
            figures.print_outcomes(chosen, tried)
    if given.timings or everything:
        for row in names_of(given.rows, ROWS, "row"):
            timed = [w for w in ways if WAYS[w].timed or given.ways]
            figures.row(row, measure(row, timed, given.warm, given.rounds, given.block, settings))
            print(tables.timing_table(row, figures.rows[row]), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
