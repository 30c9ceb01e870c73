"""Host programs that allocate their workspace part by part, on a GPU that is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from precast.lowering.analysis.traits import ARCHITECTURES, SM_90
from precast.lowering.lower import lower
from precast.lowering.passes.memory import workspace_segments
from precast.lowering.pipeline import schedule
from tests.codegen.cuda.cuda_stub import CudaStub, compile_cuda
from tests.lowering.passes.test_workspace_segments import inputs, network
from tests.ops.trace import trace


def test_parts_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results as ever, twice; each part is given back once, after its last step and before the call ends; a failure gives back the rest."""
    monkeypatch.setitem(ARCHITECTURES, "sm_90", replace(SM_90, large_bytes=1 << 10, first_bytes=64 << 10))
    monkeypatch.setattr(workspace_segments, "LEAST_BYTES", 1)
    monkeypatch.setattr(workspace_segments, "LEAST_SHARE", 0)
    monkeypatch.setattr(workspace_segments, "APART", (32 << 10, 4 << 10))
    given = inputs()
    scheduled = schedule(lower(trace(network, tuple(given))[0], "test"), "cuda:sm_90", check=True)
    compiled, writer = compile_cuda(scheduled)
    assert len(writer.parts) > 1
    assert isinstance(compiled.workspace_bytes, int) and compiled.workspace_bytes < sum(part.nbytes for part, _ in writer.parts)
    stub = CudaStub(compiled, writer)
    for _ in range(2):
        torch.testing.assert_close(stub(*given)[0], network(*given), rtol=1e-4, atol=1e-4)
        assert not stub.memory
    launches = [n for n, call in enumerate(stub.calls) if call == "cuLaunchKernel"]
    given_back = [n for n, call in enumerate(stub.calls) if call.endswith("raw_delete")]
    assert len(given_back) == 2 * len(writer.parts)
    assert given_back[0] < launches[len(launches) // 2 - 1]
    stub.fail["cuLaunchKernel"] = 700
    with pytest.raises(RuntimeError, match="700|CUDA"):
        stub(*given)
    assert not stub.memory
