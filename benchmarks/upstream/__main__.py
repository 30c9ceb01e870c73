"""Upstream's ways to keep what was compiled, beside precast's: can they, what do they check, how soon is the first answer. See docs/upstream.md.

python benchmarks/upstream [--rows gpt2,bert] [--ways precompile,aot_compile,precast_load] [--abilities] [--assumptions] [--timings]
    [--cases checkpoint_after,…] [--other-python PATH] [--warm 3] [--rounds 5] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import tables  # noqa: E402  after the path, as rows.py lies beside this folder
import torch  # noqa: E402
from cases import ABILITIES, ASSUMPTIONS, CASES  # noqa: E402
from contenders import names_of  # noqa: E402
from processes import Settings, outcomes  # noqa: E402
from rows import DEFAULT_ROWS, ROWS  # noqa: E402
from timings import measure  # noqa: E402
from ways import WAYS  # noqa: E402


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benchmarks/upstream", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(DEFAULT_ROWS), help="models for --timings")
    parser.add_argument("--ways", default=",".join(WAYS))
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
    return parser.parse_args()


def main() -> int:
    """Run what was asked for, print a table each, and write everything as JSON."""
    given = _arguments()
    ways = names_of(given.ways, WAYS, "way")
    settings = Settings(given.timeout, given.other_python, given.jobs)
    everything = not (given.abilities or given.assumptions or given.timings or given.cases)
    figures: dict[str, object] = {"torch": torch.__version__, "threads": torch.get_num_threads()}

    def keep() -> None:
        if given.json:
            given.json.write_text(json.dumps(figures, indent=1))

    print(f"## torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    tried = [w for w in ways if w != "eager"]
    for wanted, name, cases in ((given.abilities, "abilities", ABILITIES), (given.assumptions, "assumptions", ASSUMPTIONS)):
        if given.cases:
            chosen = [case for case in cases if case.name in names_of(given.cases, CASES, "case")]
        else:
            chosen = list(cases) if wanted or everything else []
        if chosen:
            results = outcomes(chosen, tried, settings)
            figures[name] = results
            print(tables.outcome_table(chosen, tried, results), flush=True)
            keep()
    if given.timings or everything:
        rows = names_of(given.rows, ROWS, "row")
        for row in rows:
            results = measure(row, ways, given.warm, given.rounds, given.block, settings)
            figures.setdefault("rows", {})[row] = results  # type: ignore[index]
            print(tables.timing_table(row, results), flush=True)
            keep()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
