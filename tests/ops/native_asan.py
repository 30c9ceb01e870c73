"""The native runtime under AddressSanitizer and UBSan: `make asan`, or `python -m tests.ops.native_asan [FILE…]`.

First errors that are planted in a copy of its C sources, each of which has to be reported. Then tests that record and check guard tables,
call graphs and replay captures, with the native runtime built with both sanitizers: they have to pass and to leave no report. Python's own
allocator is off, so that each object and each array is a block of its own. Exit code 1 where either fails.

Leaks are not looked for here: what Python and torch keep until the process ends hides ours. `tests/runtime/native/test_native_memory.py`
counts blocks instead.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ("tests/runtime/native/test_native_memory.py", "tests/runtime/guards/test_guard_tables.py")
"""Files that compile nothing: what runs in each continuous integration."""
FILES = (
    *SAMPLE,
    "tests/runtime/native/test_native.py",
    "tests/runtime/guards/test_table_arguments.py",
    "tests/runtime/guards/test_borrowed_objects.py",
    "tests/runtime/guards/test_dict_watching.py",
    "tests/runtime/guards/test_engines_agree.py",
    "tests/runtime/frames/test_reconstruct.py",
    "tests/runtime/programs/test_threads.py",
    "tests/runtime/cuda_graphs/test_cuda_graphs.py",
)


UNDEFINED = "runtime error:"
NEEDS_REUSE = "test_the_next_object_at_the_same_address_is_another_one"
"""A test that waits for an address to come back: under AddressSanitizer freed blocks are kept for a while."""


@dataclass(frozen=True)
class Planted:
    """A wrong edit of a C file, and what the sanitizers say of it."""

    file: str
    old: str
    new: str
    report: str


PLANTED = {
    "read": Planted(
        "guard_table_check.c",
        "i < self->slots_count; i++) {",
        "i < self->slots_count + !!self->slots_count; i++) {",
        "use-after-poison",
    ),
    "overflow": Planted(
        "shape_expression.c", "return !__builtin_add_overflow(a, b, result);", "*result = a + b; return 1;", "signed integer overflow"
    ),
}


@dataclass(frozen=True)
class Seen:
    """How a process under the sanitizers ended: its exit code, what it printed, and what the sanitizers reported in it or its children."""

    code: int
    output: str
    reports: str


def sanitized(*command: str, seconds: float = 3000) -> Seen:
    """Python run with this command line; the native runtime is built with the sanitizers there, the compiler itself runs without them."""
    from tests.ops.asan import environment  # which imports torch: the process with a planted error does without it

    with tempfile.TemporaryDirectory(prefix="native-asan-") as folder:
        compiler, log = Path(folder, "cc"), Path(folder, "report")
        compiler.write_text('#!/bin/sh\nexec env -u LD_PRELOAD gcc "$@"\n')
        compiler.chmod(0o755)
        surroundings = {
            **environment(undefined=True),
            "CC": str(compiler),
            "PRECAST_NATIVE_SANITIZE": "address,undefined",
            "PYTHONMALLOC": "malloc",
            "ASAN_OPTIONS": f"detect_leaks=0:exitcode=99:log_path={log}",
        }
        line = [sys.executable, "-W", "ignore", *command]
        done = subprocess.run(line, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=seconds, check=False)
        reports = [path.read_text(errors="replace") for path in sorted(Path(folder).glob("report*"))]
    output = done.stdout + done.stderr
    if UNDEFINED in output:  # UBSan writes to stderr beside ASan
        reports.append(output[max(output.find(UNDEFINED) - 200, 0) :])
    return Seen(done.returncode, output, "\n".join(reports))


def check_a_table(planted: str) -> None:
    """Builds the C sources, with a planted error or none, and lets a table be recorded and checked: a slot, and a sum that overflows.

    Without torch, which takes longer than all the rest.
    """
    from precast.artifact_store.format.expressions import postfix
    from precast.runtime.native import build
    from precast.runtime.native.kinds import Slot

    folder = Path(tempfile.mkdtemp(prefix="native-planted-"))
    copy = shutil.copytree(build.SOURCES, folder / "sources")
    if planted in PLANTED:
        edit = PLANTED[planted]
        text = (copy / edit.file).read_text()
        assert text.count(edit.old) == 1, f"{edit.file}: {edit.old!r} is not there once"
        (copy / edit.file).write_text(text.replace(edit.old, edit.new))
    build.SOURCES = copy
    library = folder / "library.so"
    library.write_bytes(build.build())
    loader = importlib.machinery.ExtensionFileLoader("planted._native", str(library))
    spec = importlib.util.spec_from_file_location(loader.name, library, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    print("built", flush=True)
    table = module.Table()
    assert table.slot(check_a_table, Slot.CODE)
    number = table.local(0)
    table.shape(tuple(postfix(("<", ("int", 0), ("+", ("int", 0), 1)), lambda _: number)))
    assert table.check((1,)) and not table.check((2**63 - 1,))
    assert "torch" not in sys.modules
    print("silent", flush=True)


def unreported(names: Sequence[str] = (*PLANTED, "none")) -> list[str]:
    """Which of these planted errors go unreported; for "none", whether sources without any are reported."""
    problems = []
    for planted in names:
        seen = sanitized("-m", "tests.ops.native_asan", "--inside", planted, seconds=600)
        if planted == "none":
            good = seen.code == 0 and "silent" in seen.output and not seen.reports
        else:
            wanted = PLANTED[planted]
            good = seen.code != 0 and "built" in seen.output and wanted.report in seen.reports and wanted.file in seen.reports
        if not good:
            problems.append(f"{planted}: exit code {seen.code}\n{seen.output[-1500:]}{seen.reports[:3000]}")
    return problems


def run_tests(files: Sequence[str]) -> Seen:
    """These files of tests with pytest, whose exit code 0 and no report mean that all is well."""
    return sanitized(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=sys", "-k", f"not {NEEDS_REUSE}", *files
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", default=FILES, help="files of tests (default: all that use the native runtime)")
    parser.add_argument("--inside", choices=(*PLANTED, "none"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside:
        check_a_table(given.inside)
        return 0
    began = time.monotonic()
    problems = unreported()
    print("\n".join(problems) or f"planted errors are reported ({time.monotonic() - began:.0f} s)", flush=True)
    seen = run_tests(given.files)
    print(seen.output[-3000:] + seen.reports[:6000])
    clean = not problems and seen.code == 0 and not seen.reports
    print(f"{'clean' if clean else 'NOT CLEAN'} ({time.monotonic() - began:.0f} s)")
    return int(not clean)


if __name__ == "__main__":
    sys.exit(main())
