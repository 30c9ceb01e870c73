"""Everything that runs on a device, within a few minutes on 16 cores: `python -m tests.gpu.run_all [--minutes 8] [--out FOLDER]`.

The tests of this folder by pytest, torch's op_db on the device in float32 and bfloat16 beside them (`--dtypes f16,f64,i64`: in others
too), compute-sanitizer over a sample last: memcheck, and over a smaller one racecheck and synccheck.
What is printed is short; the logs are in `--out`. Exit code 1 where anything failed or was not reached.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.device import MISSING
from tests.ops.opdb import Results, behind, run, summary

ROOT = Path(__file__).resolve().parents[2]
BACKENDS = ("precast-cuda", "precast-cuda-bf16")
MORE = ("f16", "f64", "i64")
"""Dtypes that op_db is judged in when asked."""
SANITIZERS = (("memcheck", 12), ("racecheck", 40), ("synccheck", 40))
"""compute-sanitizer's tools, and every how many rows of the op table each is run over."""


class Tests(threading.Thread):
    """pytest in a process of its own, its whole output in a log."""

    def __init__(self, workers: int, log: Path, until: float, select: str) -> None:
        super().__init__()
        self.log, self.until, self.status = log, until, -1
        self.failures = log.with_name("failures.txt")
        self.failures.unlink(missing_ok=True)
        self.told = 0
        options = ["-q", "--tb=short", "-rs", "--import-mode=importlib", "-p", "no:cacheprovider", "-p", "no:benchmark"]
        options += ["-k", select] if select else []
        spread = ["-n", str(workers), "--dist", "worksteal"] if workers > 1 else []
        self.command = [sys.executable, "-m", "pytest", "tests/gpu", *options, *spread, "-o", "addopts="]

    def run(self) -> None:
        with self.log.open("w") as file:
            environment = {**os.environ, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", "PRECAST_GPU_FAILURES": str(self.failures)}
            process = subprocess.Popen(self.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, env=environment)
            while process.poll() is None and time.monotonic() < self.until:
                time.sleep(1)
                self.tell()
            if process.poll() is None:
                process.kill()  # its workers end with it; the failures so far are in the file
            else:
                self.status = process.returncode
            process.wait()
        self.tell()

    def tell(self, most: int = 60) -> None:
        """Prints the failures that are new, a line each."""
        lines = self.failures.read_text().splitlines() if self.failures.exists() else []
        for number in range(self.told, min(len(lines), most)):
            print(lines[number][:300], flush=True)
        self.told = max(self.told, len(lines))

    def report(self) -> list[str]:
        """What was skipped, by reason, and how it ended; how far it came where it was out of time."""
        lines = self.log.read_text().splitlines()
        skipped = [line[:160] for line in lines if line.startswith("SKIPPED")]
        end = lines[-1] if lines else "no output"
        crashed = [line for line in lines if "node down" in line]
        return [
            *skipped[:15],
            *crashed,
            f"pytest: {end}" if self.status >= 0 else f"pytest was out of time after {self.told} failures: {end}",
        ]


def backends(dtypes: Sequence[str]) -> tuple[str, ...]:
    """Ours, in float32 and bfloat16 and in `dtypes`. Raises ValueError."""
    unknown = [d for d in dtypes if d not in MORE]
    if unknown:
        raise ValueError(f"--dtypes: {', '.join(unknown)} is none of {', '.join(MORE)}")
    return (*BACKENDS, *(f"precast-cuda-{d}" for d in dtypes))


def opdb(workers: int, samples: int, out: Path, until: float, rivals: bool, ours: Sequence[str] = BACKENDS) -> tuple[list[str], bool]:
    """Verdicts over op_db; whether nothing is wrong, and nothing fails that Inductor passes where it was judged too."""
    from tests.ops.opdb_judge import operators

    results: Results = {}
    pairs = {name: name.replace("precast", "inductor") for name in ours}
    for backend in (*pairs, *(pairs.values() if rivals else ())):
        results = run([backend], list(operators(backend)), samples, out=out, workers=workers, timeout=60, until=until)
    lines = [line[:200] for line in summary(results) if not line.startswith("  inductor")]
    for mine, theirs in pairs.items():
        if theirs in results:
            lacking = behind(results[mine], results[theirs])
            lines.append(f"{mine}: {len(lacking)} fail that {theirs} passes: {', '.join(lacking)[:1500]}")
    good = all(v["verdict"] in ("pass", "refused", "no sample") for name in ours for v in results.get(name, {}).values())
    return lines, good and all(len(results.get(name, {})) == len(operators(name)) for name in ours)


def sanitized() -> bool:
    """compute-sanitizer's tools one after another; whether none reported anything."""
    clean = True
    for tool, every in SANITIZERS:
        command = [sys.executable, "-m", "tests.gpu.sanitize", "--tool", tool, "--every", str(every)]
        clean = subprocess.run(command, cwd=ROOT, check=False).returncode == 0 and clean
    return clean


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="processes at a time, half for pytest, half for op_db")
    parser.add_argument("--samples", type=int, default=1, help="of each operator")
    parser.add_argument("--select", default="", help="pytest -k")
    parser.add_argument("--rivals", action="store_true", help="judge Inductor on op_db as well")
    parser.add_argument("--dtypes", default="", help=f"judge op_db in these, too, of {','.join(MORE)}; give it more minutes then")
    parser.add_argument("--no-opdb", action="store_true")
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument(
        "--sanitize", action="store_true", help="compute-sanitizer (memcheck, racecheck, synccheck) over samples at the end"
    )
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    try:
        ours = backends(args.dtypes.split(",") if args.dtypes else ())
    except ValueError as error:
        parser.error(str(error))
    if MISSING:
        print(MISSING)
        return 0
    folder = args.out or Path(tempfile.mkdtemp(prefix="precast-gpu-"))
    folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * args.minutes
    alone = args.no_opdb or args.no_tests
    share = max(1, args.workers if alone else args.workers // 2)
    good = True
    tests = None if args.no_tests else Tests(share, folder / "pytest.log", until, args.select)
    if tests is not None:
        tests.start()
    lines: list[str] = []
    if not args.no_opdb:
        lines, good = opdb(share, args.samples, folder / "opdb.json", until - 60, args.rivals, ours)
    if tests is not None:
        tests.join()
        lines = [*tests.report(), *lines]
        good = good and tests.status == 0
    print("\n".join(lines), flush=True)
    if args.sanitize:
        good = sanitized() and good
    print(f"logs in {folder}; {'all good' if good else 'NOT all good'}; {until - time.monotonic():.0f} s left of {60 * args.minutes:.0f}")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
