"""Memory of library results: large ones stay mapped between calls, and do not lie among what the first call leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CHILD = """
import ctypes, resource, sys
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
class Heap(ctypes.Structure):
    _fields_ = [(n, ctypes.c_size_t) for n in "arena a b c d e f g h i".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Heap
before = mallinfo().arena
(found,) = loaded(x, *ws)
grown = mallinfo().arena - before
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
print(least, grown)
"""


def measure(rows: int, **environment: str) -> tuple[float, int]:
    """Fresh pages of a steady call, and by how many bytes the first call lets the heap grow: in a fresh process."""
    command = [sys.executable, "-c", CHILD, str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    least, grown = done.stdout.split()[-2:]
    return float(least), int(grown)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's thresholds")


@pytest.mark.parametrize("rows", [200, 2000, 6000])  # three results of 0.8, 8 or 23 MiB: 600, 6000 or 18000 pages
def test_a_library_result_meets_no_fresh_pages(rows: int) -> None:
    assert measure(rows)[0] < rows / 4


def test_what_the_first_call_leaves_does_not_lie_among_its_large_results() -> None:
    assert measure(2000)[1] < 8 << 20  # the three results take 24 MiB


def test_a_users_own_limits_of_malloc_stay() -> None:
    assert measure(2000, MALLOC_MMAP_THRESHOLD_="131072")[0] > 4000  # large results are mapped at each call, as asked
