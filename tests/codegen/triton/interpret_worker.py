"""A process of its own for Triton's interpreter: runs rows of the op table and prints JSON, row id to failure ("": agrees with eager)."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from unittest import mock

from precast.codegen.triton.render.ops import Unsupported
from precast.codegen.triton.render.tiling import Tiling
from precast.lowering.build.builder import Builder
from precast.lowering.ir.nodes import Kernel, Program, Reduce, Scan, walk
from tests.codegen.triton.emulate import run
from tests.ops.optable import ROWS
from tests.ops.rows import Row
from tests.ops.runners import compare_row, program_of
from tests.ops.trace import tensors_of

LOOPED = Tiling(xblock=16, persistent=8, rblock=8, unroll=1)
"""Small blocks: every reduction becomes a loop over several blocks."""


LARGE = {"mean_all_and_rows-f32"}
"""Rows that take long in small blocks."""


RESHAPING = ("view/", "roll", "pad/", "upsample", "conv2d/stride", "cat/", "pool2d")
"""Rows whose index expressions get rich when sizes are symbols."""


ON_DEVICE = ("logcumsumexp",)
"""Rows of operators that have loops in graphs of a GPU only; what is traced here lies on the CPU."""


def reduces(program: Program) -> bool:
    """Whether any kernel holds a reduction or a scan, which is all that a tiling of small blocks can break."""
    stores = [store for step in program.steps if isinstance(step, Kernel) for store in step.stores]
    return any(isinstance(v, Reduce | Scan) for v in walk(*(s.value for s in stores)))


def triton_runner(tiling: Tiling | None, symbolic: bool):  # type: ignore[no-untyped-def]
    def runner(row: Row, inputs: tuple[object, ...]) -> object:
        with mock.patch.object(Builder, "on_gpu", row.id.startswith(ON_DEVICE)):
            program, rebuild = program_of(row.fn, inputs, schedule=True, target="cuda:sm_90", symbolic=symbolic)
        if tiling is not None and not reduces(program):
            raise Unsupported("nothing is reduced")
        return rebuild(run(program, tensors_of(inputs), tiling))

    return runner


def main(which: str, every: int) -> None:
    rows = [r for r in ROWS if which == "all" or r.id not in LARGE]
    if which == "symbolic":
        rows = [r for n, r in enumerate(rows) if n % 8 == 0 or r.id.startswith(RESHAPING)]
    rows = rows[::every]
    tiling = LOOPED if which == "looped" else None
    results: dict[str, str] = {}
    spent: dict[str, float] = {}
    for row in rows:
        start = time.perf_counter()
        if row.id.startswith("cumsum/"):
            row = replace(row, ulps=256.0)  # eager's running sums on a CPU are in double precision
        try:
            compare_row(row, triton_runner(tiling, which == "symbolic"))
            results[row.id] = ""
        except Unsupported as error:
            results[row.id] = f"refused: {error}"
        except Exception as error:  # noqa: BLE001  (reported for the row by the parent process)
            results[row.id] = f"{type(error).__name__}: {str(error)[:500]} {' '.join(getattr(error, '__notes__', []))}"
        spent[row.id] = time.perf_counter() - start
    slowest = sorted(spent.items(), key=lambda kv: -kv[1])[:8]
    print(json.dumps({"results": results, "slowest": slowest}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
