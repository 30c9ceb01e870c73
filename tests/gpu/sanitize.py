"""compute-sanitizer over a sample of generated kernels: `python -m tests.gpu.sanitize [--tool memcheck] [--every 12]`.

Programs are compiled first, into a store; then a process under the sanitizer, whose caching allocator is off so that each tensor has
bounds of its own, runs them from there. Exit code 1 for any report. The workspace of a call is one allocation, so an access that stays
inside it is not seen here: that is what the poisoned runs of test_optable_gpu.py are for.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.gpu.device import MISSING, row_on_device, synchronize
from tests.ops.check import Mismatch, check, copied, expect
from tests.ops.compiled import compiled
from tests.ops.optable import ROWS
from tests.ops.rows import Row

ROOT = Path(__file__).resolve().parents[2]
SEED = 20
CUDA = Path("/usr/local/cuda/bin/compute-sanitizer")


def sample(every: int) -> Iterator[Row]:
    """Every so many rows of the table, moved to the device; library calls and random numbers are not ours to check."""
    return (row_on_device(row) for row in ROWS[::every] if not {"extern", "random"} & row.tags)


def run_rows(store: Path, every: int) -> int:
    """Compiles (or loads) and runs the sample; how many rows ran. Rows that eager refuses are left out."""
    count = 0
    with torch.no_grad():
        for row in sample(every):
            try:
                expected = expect(row, SEED)
            except (RuntimeError, NotImplementedError):
                continue
            inputs = copied(expected.inputs)
            try:
                check(row, expected, compiled(row.fn, store, row.id)(*inputs), inputs, aliasing=False)
            except Mismatch as wrong:
                print(f"wrong: {wrong}")
            synchronize()
            count += 1
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", default="memcheck", choices=("memcheck", "racecheck", "initcheck", "synccheck"))
    parser.add_argument("--every", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=400)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if MISSING:
        print(MISSING)
        return 0
    if args.child:
        print(f"rows run: {run_rows(args.child, args.every)}")
        return 0
    sanitizer = shutil.which("compute-sanitizer") or (str(CUDA) if CUDA.exists() else None)
    if sanitizer is None:
        print("compute-sanitizer is not installed here: it comes with the CUDA toolkit")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        child = [sys.executable, "-m", "tests.gpu.sanitize", "--child", folder, "--every", str(args.every)]
        first = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
        if first.returncode:
            print(f"the sample does not run without the sanitizer:\n{first.stderr[-1500:]}")
            return 1
        command = [sanitizer, "--tool", args.tool, "--error-exitcode", "17", "--print-limit", "20", *child]
        environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=args.timeout, check=False)
        except subprocess.TimeoutExpired:
            print(f"{args.tool}: not done within {args.timeout:.0f} s")
            return 1
    text = done.stdout + done.stderr
    telling = r"=+ *(Invalid|Error|Program hit|Race|Uninit|Barrier|ERROR|    at )|wrong:|rows run"
    lines = [line for line in text.splitlines() if re.match(telling, line)]
    print("\n".join(line[:200] for line in lines[:60]) + f"\n{args.tool}: exit code {done.returncode}")
    if done.returncode not in (0, 17):
        print(text[-1500:])
    return 0 if done.returncode == 0 and "rows run" in text and "wrong:" not in text else 1


if __name__ == "__main__":
    raise SystemExit(main())
