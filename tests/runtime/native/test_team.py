"""Calls whose second thread is kept from its core run on one thread, and give the threads back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import child

PROGRAM = """
import os, sys, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # two threads and one core: each waits for the other
import torch
import precast
from precast.runtime.native import loader

torch.set_num_threads(2)
torch.use_deterministic_algorithms(sys.argv[2] == "deterministic")
x = torch.randn(1024, 1024, dtype=torch.float64)
compiled = precast.compile(lambda x: (x.sin() * 2).softmax(-1), store=sys.argv[1])
want = compiled(x)
end = time.monotonic() + float(sys.argv[3])
alone = False
while not alone and time.monotonic() < end:
    compiled(x)
    alone = loader.loaded().runs_alone()
same = torch.equal(compiled(x), want)
print(alone, torch.get_num_threads(), same)
"""


needs_count = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this Linux does not count what threads wait for a core")


@needs_count
def test_calls_run_alone_where_two_threads_share_a_core(tmp_path: Path) -> None:
    assert child(tmp_path, PROGRAM, str(tmp_path), "", "60").split() == ["True", "2", "True"]


def test_they_do_not_where_that_is_turned_off_or_might_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert child(tmp_path, PROGRAM, str(tmp_path), "deterministic", "2").split() == ["False", "2", "True"]
    monkeypatch.setenv("PRECAST_ADAPT_THREADS", "0")
    assert child(tmp_path, PROGRAM, str(tmp_path), "", "2").split() == ["False", "2", "True"]
