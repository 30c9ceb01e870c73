"""Memory of library results: it stays mapped between calls, but for what the first call leaves free."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHILD = """
import resource, sys
import torch
from precast.codegen import compile_program
from precast.codegen.common.options import CodegenOptions
from precast.lowering.ir.nodes import Gemm, Reduce
from precast.lowering.ir.scalars import Op, ReduceOp
from tests.codegen.loader import Loaded
from tests.codegen.programs import alu, axis, buffer, load, map_kernel, program, view

rows = int(sys.argv[1])
a, r = buffer("a", (rows, 64)), buffer("r", (rows,))
weights = [buffer(f"b{n}", (64, 1024)) for n in range(3)]
products = [buffer(f"o{n}", (rows, 1024)) for n in range(3)]
i, j = axis("i", rows), axis("j", 1024)
values = [load(o, [i, j]) for o in products]
total = Reduce(ReduceOp.SUM, alu(Op.ADD, alu(Op.ADD, values[0], values[1]), values[2]), (j,), r.dtype)
steps = [*(Gemm(view(a), view(b), None, o.name) for b, o in zip(weights, products)), map_kernel("total", r, [i], total)]
p = program([a, *weights], [r], steps, temps=products)
loaded = Loaded(compile_program(p, "cpu:native", CodegenOptions(measure=False)).library)
x, ws = torch.randn(rows, 64), [torch.randn(64, 1024) for _ in range(3)]
want = x.double() @ sum(w.double().sum(1) for w in ws)
def resident():
    status = open("/proc/self/status").read()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10

before = resident()
(found,) = loaded(x, *ws)
left = resident() - before
for _ in range(3):
    (found,) = loaded(x, *ws)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        (found,) = loaded(x, *ws)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10

least = min(faults() for _ in range(4))  # whatever else the process does meanwhile meets pages, too
(found,) = loaded(x, *ws)
torch.testing.assert_close(found.double(), want, rtol=1e-4, atol=1e-2)
print(least, left)
"""


def measure(rows: int, **environment: str) -> tuple[float, int]:
    """Fresh pages of a steady call, and how many bytes more are resident after the first call: in a fresh process."""
    command = [sys.executable, "-c", CHILD, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    least, left = done.stdout.split()[-2:]
    return float(least), int(left)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's thresholds")


@pytest.mark.parametrize("rows", [200, 2000, 6000])  # three results of 0.8, 8 or 23 MiB: 600, 6000 or 18000 pages
def test_a_library_result_meets_no_fresh_pages(rows: int) -> None:
    assert measure(rows)[0] < rows / 4


def test_the_first_call_gives_back_what_it_freed() -> None:
    assert measure(2000)[1] < 12 << 20  # the three results take 24 MiB


def test_a_users_own_limits_of_malloc_stay() -> None:
    assert measure(2000, MALLOC_MMAP_THRESHOLD_="131072")[0] > 4000  # large results are mapped at each call, as asked
