"""Memory of library results: large ones stay mapped between calls, however many live at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = """
import resource, sys
import torch
from precast.codegen import compile_program
from precast.lowering.ir import Gemm, Op, Reduce, ReduceOp
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
loaded = Loaded(compile_program(p, "cpu:native", {"measure": False}).library)
x, ws = torch.randn(rows, 64), [torch.randn(64, 1024) for _ in range(3)]
want = x.double() @ sum(w.double().sum(1) for w in ws)
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
print(least)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's thresholds")
@pytest.mark.parametrize("rows", [200, 2000])  # three results of 0.8 MiB or 8 MiB: 600 or 6000 pages
def test_a_library_result_meets_no_fresh_pages(rows: int) -> None:
    done = subprocess.run([sys.executable, "-c", CHILD, str(rows)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < rows / 4
