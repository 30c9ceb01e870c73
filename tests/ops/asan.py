"""Generated C++ under AddressSanitizer: `make asan`, or `python -m tests.ops.asan [--every 12] [--undefined]`, with UBSan, too.

First a read past a tensor's end that has to be reported. Then every so many rows of the op table, and those of `values.py`, which have
to agree with eager and leave the sanitizer silent. Exit code 1 where either fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from precast.codegen.common.options import CodegenOptions

ROOT = Path(__file__).resolve().parents[2]
NOTICED = "heap-buffer-overflow"
BATCH = 12


def environment(undefined: bool = False) -> dict[str, str]:
    """The environment of a process that the sanitizers' libraries are loaded into first."""
    names = ("libasan.so", "libubsan.so", "libstdc++.so") if undefined else ("libasan.so", "libstdc++.so")  # the last: for exceptions
    found = (
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip() for name in names
    )
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(os.path.realpath(path) for path in found),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
        "PRECAST_STRICT": "1",
    }


def under_sanitizer(*arguments: str, undefined: bool = False) -> subprocess.CompletedProcess[str]:
    """This module run with these arguments in such a process."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.ops.asan", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(undefined), capture_output=True, text=True, timeout=3000, check=False)


def read_past_the_end() -> None:
    """Runs generated code for 64 elements on a tensor of 48, which guards never let happen."""
    import torch

    from precast.codegen import compile_program
    from tests.codegen.loader import Loaded
    from tests.ops.runners import program_of

    program, _ = program_of(lambda x: x * 2 + 1, (torch.ones(64),), schedule=True)
    compiled = compile_program(program, "cpu:x86-64-v3", CodegenOptions(sanitize="address", measure=False))
    inside = Loaded(compiled.library)(torch.ones(64))[0]
    assert torch.equal(inside, torch.full((64,), 3.0))
    print("inside", flush=True)
    Loaded(compiled.library)(torch.ones(48))
    print("not noticed", flush=True)


def rows_agree(every: int, sanitize: str, most: int) -> int:
    """How many batches of rows fail; what they say is printed."""
    import precast
    from tests.ops.optable import ROWS
    from tests.ops.runners import batches, compare_batch
    from tests.ops.values import as_rows

    rows = (*ROWS[::every], *as_rows())[: most or None]
    store = tempfile.mkdtemp(prefix="asan-")
    options = {"sanitize": sanitize, "accumulated_recompile_limit": 1 << 30, "isolate_recompiles": True}
    compiled: Callable[..., Any] = partial(precast.compile, store=store, fullgraph=True, options=options)
    failures = []
    for number, batch in enumerate(batches(rows, BATCH)):  # by turns with sizes as constants and as symbols
        failures += compare_batch(batch, partial(compiled, dynamic=number % 2 == 1))
    print("\n".join([*failures, f"{len(rows)} rows, {len(failures)} failures"]), flush=True)
    return len(failures)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--every", type=int, default=12, help="one of so many rows of the op table")
    parser.add_argument("--most", type=int, default=0, help="rows at most")
    parser.add_argument("--undefined", action="store_true", help="UBSan, too")
    parser.add_argument("--inside", choices=("rows", "past the end"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside == "past the end":
        read_past_the_end()
        return 0
    if given.inside == "rows":
        return min(rows_agree(given.every, "address,undefined" if given.undefined else "address", given.most), 1)
    began = time.monotonic()
    seen = under_sanitizer("--inside", "past the end")
    if "inside" not in seen.stdout or NOTICED not in seen.stderr or seen.returncode == 0:
        print(f"a read past the end was not reported:\n{seen.stdout[-500:]}{seen.stderr[-2000:]}")
        return 1
    print(f"a read past the end is reported ({time.monotonic() - began:.0f} s)", flush=True)
    words = ["--inside", "rows", "--every", str(given.every), "--most", str(given.most), *(["--undefined"] if given.undefined else [])]
    done = under_sanitizer(*words, undefined=given.undefined)
    said = done.stderr[max(done.stderr.find("ERROR: AddressSanitizer"), done.stderr.find("runtime error:"), 0) :]
    print(done.stdout + (said[:4000] if done.returncode else ""))
    print(f"{'clean' if done.returncode == 0 else 'NOT CLEAN'} ({time.monotonic() - began:.0f} s)")
    return int(done.returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
