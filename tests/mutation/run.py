"""The mutation run: `python -m tests.mutation.run [--all] [--area A] [--name TEXT] [--sample N --seed S] [--jobs N] [--seconds N]`.

Rows of the table are put into a copy of the tree, one at a time, and their tests run there; see README.md beside this file. The checkout is
never edited. Which rows: those named; else a seeded sample, of `--area` or of the whole table; with `--all` each.
Exit code 0: all mutants that apply were killed; 1: one survived, or a row or its tests do not fit the sources; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from tests.mutation.process import Outcome, Run, preload
from tests.mutation.table import DoesNotApply, Mutant, areas, table
from tests.mutation.tree import Tree

KILLED, SURVIVED, ROTTEN, UNFIT, BROKEN, NOT_RUN = "killed", "survived", "does not apply", "baseline fails", "does not collect", "not run"
BAD = (SURVIVED, ROTTEN, BROKEN)
SHORTEST_LIMIT = 90.0
"""Seconds that every run is given at least before it counts as a hang."""
BASELINE_LIMIT = 400.0
NO_BUILD = "the native runtime cannot be built"
"""What the runtime's tests say where the edited C is no C."""
T = TypeVar("T")


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    name: str
    area: str
    file: str
    verdict: str
    by: str = ""
    """The test that noticed."""
    why: str = ""
    seconds: float = 0.0


def judge(mutant: Mutant, outcome: Outcome) -> Verdict:
    """The verdict over a run: a failure, a crash and a hang each kill."""

    def verdict(what: str, by: str = "", why: str = "") -> Verdict:
        return Verdict(mutant.name, mutant.area, mutant.file, what, by, why, round(outcome.seconds, 1))

    if outcome.code is None:
        return verdict(KILLED, outcome.running, "hang: stopped after its time")
    if outcome.failed:
        by, why = next(iter(outcome.failed.items()))
        return verdict(KILLED if "::" in by and NO_BUILD not in why else BROKEN, by, why)
    if outcome.code < 0:
        return verdict(KILLED, outcome.running, f"crash: signal {-outcome.code}")
    if outcome.code == 0 and outcome.passed:
        return verdict(SURVIVED, why=f"{len(outcome.passed)} tests passed, {len(outcome.skipped)} were skipped")
    if outcome.code == 0:
        return verdict(UNFIT, why=f"all {len(outcome.skipped)} tests were skipped")
    return verdict(BROKEN, why=f"pytest ended with {outcome.code}: {_tail(Path(outcome.log))}")


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.is_file() else []
    return lines[-1][:200] if lines else "no output"


class Pool:
    """Runs jobs in forked processes, `jobs` at a time, until `until`."""

    def __init__(self, jobs: int, until: float) -> None:
        self.jobs, self.until = jobs, until

    def work(self, waiting: Iterable[T], begin: Callable[[T, int], Run | None], done: Callable[[T, int, Outcome], None]) -> list[T]:
        """`begin(item, slot)` and later `done(item, slot, outcome)` for each; the items that were not begun in time."""
        queue, running = list(waiting), dict[int, tuple[T, Run]]()
        while queue or running:
            out_of_time = time.monotonic() > self.until
            while queue and not out_of_time and len(running) < self.jobs:
                slot = min(set(range(self.jobs)) - set(running))
                item = queue.pop(0)
                begun = begin(item, slot)
                if begun is not None:
                    running[slot] = (item, begun)
            if out_of_time and not running:
                break
            for slot, (item, run) in list(running.items()):
                outcome = run.poll()
                if outcome is not None:
                    del running[slot]
                    done(item, slot, outcome)
            time.sleep(0.05)
        return queue


class Session:
    """One run of the table: baseline first, then the mutants, a copy of the tree each job."""

    def __init__(self, folder: Path, jobs: int, until: float, tell: Callable[[str], None]) -> None:
        self.folder, self.pool, self.tell, self.jobs = folder, Pool(jobs, until), tell, jobs
        self.trees = [Tree(folder / f"tree{number}") for number in range(jobs)]
        self.unfit: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.took: dict[str, float] = {}
        self.verdicts: list[Verdict] = []
        self.count = 0

    def scratch(self) -> Path:
        self.count += 1
        return self.folder / f"run{self.count}"

    def baseline(self, mutants: Sequence[Mutant]) -> None:
        """Every named test on the sources as they are: it must pass, or it says nothing of a mutant."""
        by_file: dict[str, dict[str, None]] = {}
        for mutant in mutants:
            for node in mutant.nodes:
                by_file.setdefault(node.partition("::")[0], {})[node] = None

        def begin(file: str, slot: int) -> Run:
            nodes = [file] if file in by_file[file] else list(by_file[file])
            return Run(self.trees[slot].folder, self.scratch(), nodes, BASELINE_LIMIT, stop_at_first=False)

        def done(file: str, slot: int, outcome: Outcome) -> None:
            self.took[file] = outcome.seconds
            self.unfit |= outcome.failed
            if outcome.code is None:
                self.unfit[file] = f"stopped after {BASELINE_LIMIT:.0f} s"
            elif outcome.code not in (0, 1) and not outcome.failed:
                self.unfit[file] = f"pytest ended with {outcome.code}: {_tail(Path(outcome.log))}"
            elif not outcome.passed and not outcome.failed:
                self.unfit[file] = "all tests are skipped here"
            self.tell(f"baseline {file}: {len(outcome.passed)} passed, {len(outcome.failed)} failed in {outcome.seconds:.1f} s")

        for file in self.pool.work(sorted(by_file), begin, done):
            self.unfit[file] = "out of time"

    def fit_nodes(self, mutant: Mutant) -> tuple[list[str], list[str], str]:
        """Which of the mutant's tests say something here, which cases in them do not, and why, where there are any such."""
        nodes, left_out, reason = [], [], ""
        for node in mutant.nodes:
            holds = [f for f in self.unfit if f == node or node.startswith((f"{f}::", f"{f}["))]  # it, its file or its function failed
            within = [f for f in self.unfit if f.startswith((f"{node}::", f"{node}["))]
            reason = next((f"{f}: {self.unfit[f]}" for f in (*holds, *within)), reason)
            left_out += within
            nodes += [] if holds else [node]
        return nodes, left_out, reason

    def run(self, mutants: Sequence[Mutant]) -> None:
        fit = []
        for mutant in mutants:
            nodes, _, reason = self.fit_nodes(mutant)
            if nodes:
                fit.append(mutant)
            else:
                self.add(Verdict(mutant.name, mutant.area, mutant.file, UNFIT, why=reason))

        def begin(mutant: Mutant, slot: int) -> Run | None:
            tree = self.trees[slot]
            try:
                tree.put(mutant)
            except (DoesNotApply, OSError) as error:
                self.add(Verdict(mutant.name, mutant.area, mutant.file, ROTTEN, why=str(error)))
                return None
            took = sum(self.took.get(file, 0) for file in {node.partition("::")[0] for node in mutant.nodes})
            nodes, left_out, _ = self.fit_nodes(mutant)
            return Run(tree.folder, self.scratch(), [*nodes, *(f"--deselect={case}" for case in left_out)], max(SHORTEST_LIMIT, 5 * took))

        def done(mutant: Mutant, slot: int, outcome: Outcome) -> None:
            self.trees[slot].restore()
            self.add(judge(mutant, outcome))

        for mutant in self.pool.work(fit, begin, done):
            self.add(Verdict(mutant.name, mutant.area, mutant.file, NOT_RUN, why="out of time"))

    def add(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        by = f" by {verdict.by}" if verdict.by else ""
        self.tell(f"{verdict.verdict.upper():15} {verdict.area}: {verdict.name}{by} ({verdict.why}) {verdict.seconds:.1f} s")


def chosen(args: argparse.Namespace) -> list[Mutant]:
    """The rows that were asked for; those judged equivalent only by name."""
    rows = [row for row in table(tuple(args.area)) if not args.name or any(word in row.name for word in args.name)]
    if not args.name:
        rows = [row for row in rows if not row.equivalent]
    if not args.all and not args.name:
        rows = random.Random(args.seed).sample(rows, min(args.sample, len(rows)))
    return rows


def report(verdicts: Sequence[Verdict], seconds: float, as_json: bool) -> None:
    counts = Counter(verdict.verdict for verdict in verdicts)
    if as_json:
        print(json.dumps({"counts": counts, "seconds": round(seconds, 1), "mutants": [asdict(verdict) for verdict in verdicts]}, indent=1))
        return
    for verdict in verdicts:
        if verdict.verdict not in (KILLED, NOT_RUN):
            print(f"{verdict.verdict}: {verdict.area}: {verdict.name} ({verdict.file}): {verdict.why}")
    print(f"{len(verdicts)} mutants in {seconds:.0f} s: " + ", ".join(f"{number} {what}" for what, number in sorted(counts.items())))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation.run", description="Put mutants into copies of the tree and run the tests."
    )
    parser.add_argument("--area", action="append", default=[], choices=areas(), help="only these areas (repeat)")
    parser.add_argument("--name", action="append", default=[], help="only rows whose name holds this text (repeat for more)")
    parser.add_argument("--all", action="store_true", help="every row that is not judged equivalent")
    parser.add_argument("--sample", type=int, default=12, help="how many rows otherwise (default 12)")
    parser.add_argument("--seed", type=int, default=None, help="of the sample; printed, another one each time")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="copies of the tree that work at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no mutant after so many seconds; the report says what was left")
    parser.add_argument("--json", action="store_true", help="the report as JSON on stdout; progress goes to stderr")
    parser.add_argument("--keep", type=Path, help="keep copies and logs in this folder")
    args = parser.parse_args(arguments)
    began = time.monotonic()
    args.seed = int.from_bytes(os.urandom(3), "little") if args.seed is None else args.seed
    mutants = chosen(args)
    if not mutants:
        print("no row of the table is of that name and area", file=sys.stderr)
        return 2
    if not args.all and not args.name:
        print(f"a sample: --seed {args.seed} repeats it", file=sys.stderr, flush=True)
    preload()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="precast-mutants-"))
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # tests that act as another user have to reach what they made
    try:
        session = Session(folder, min(args.jobs, len(mutants)), began + args.seconds, lambda line: print(line, file=sys.stderr, flush=True))
        session.baseline(mutants)
        session.run(mutants)
    finally:
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    report(session.verdicts, time.monotonic() - began, args.json)
    return int(any(verdict.verdict in BAD for verdict in session.verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
