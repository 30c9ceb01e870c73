"""Looks for inputs on which a parser fails, guided by the branches that they take: atheris over the table in `parsers.py`.

`make fuzz` runs all parsers for a minute each, `python -m tests.fuzz.coverage_guided --seconds 600 "bundle's index"` one for longer.
A row each: runs, inputs that took new branches, and what was found. A finding's input is left in `.fuzz/`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(".fuzz")
MEMORY_MB, INPUT_SECONDS, LONGEST = 2048, 10, 8192


def fuzz_one(name: str, seconds: int, corpus: Path) -> None:
    """In a process of its own: does not come back."""
    import atheris

    with atheris.instrument_imports(include=["precast.artifact_store"], enable_loader_override=False):
        from tests.fuzz.parsers import PARSERS, tried
    parser = PARSERS[name]
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(parser.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={seconds}", f"-timeout={INPUT_SECONDS}", f"-rss_limit_mb={MEMORY_MB}", f"-max_len={LONGEST}"]
    arguments = [sys.argv[0], *limits, f"-artifact_prefix={corpus.parent}/found-{corpus.name}-", "-print_final_stats=1", str(corpus)]
    atheris.Setup(arguments, lambda data: tried(parser, data))
    atheris.Fuzz()


def run(name: str, seconds: int) -> tuple[str, bool]:
    """A row of the table, and whether nothing was found."""
    corpus = FOLDER / re.sub(r"\W+", "-", name)
    started = time.monotonic()
    words = [sys.executable, "-m", "tests.fuzz.coverage_guided", "--seconds", str(seconds), "--here", name]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    said = done.stdout + done.stderr
    runs = re.findall(r"stat::number_of_executed_units: *(\d+)|^#(\d+)", said, re.M)
    kept = re.findall(r"stat::new_units_added: *(\d+)", said)
    count = max((int(a or b) for a, b in runs), default=0)
    FOLDER.joinpath(f"{corpus.name}.log").write_text(said)
    fault = re.findall(r"=== Uncaught Python exception: ===\n(.*)|SUMMARY: libFuzzer: (.*)", said)
    found = "; ".join(a or b for a, b in fault) if done.returncode else "nothing"
    if done.returncode and not fault:
        found = f"exit code {done.returncode}: see {FOLDER}/{corpus.name}.log"
    row = f"| {name} | {count:,} | {kept[0] if kept else '?'} | {time.monotonic() - started:.0f} s | {found[:200]} |"
    return row, done.returncode == 0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("names", nargs="*", help="parsers (default: all)")
    arguments.add_argument("--seconds", type=int, default=60, help="for each parser")
    arguments.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.here:
        fuzz_one(chosen.names[0], chosen.seconds, FOLDER / re.sub(r"\W+", "-", chosen.names[0]))
    from tests.fuzz.parsers import PARSERS

    FOLDER.mkdir(exist_ok=True)
    print("| parser | runs | new branches | time | found |\n|---|---|---|---|---|", flush=True)
    good = True
    for name in chosen.names or PARSERS:
        row, sound = run(name, chosen.seconds)
        good &= sound
        print(row, flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
