"""The device that the tests of this folder ran on; where there is none, the one item that says so."""

from __future__ import annotations

import pytest
import torch

from precast.runtime.targets.cuda import native_cuda
from precast.runtime.targets.ladder import rank
from tests.gpu.device import DEVICE, MISSING


@pytest.mark.gpu
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_there_is_a_device() -> None:
    """precast knows a target for it, and it computes."""
    assert float((torch.ones(8, device=DEVICE) + 1).sum()) == 16.0
    if DEVICE != "cpu":
        major, minor = torch.cuda.get_device_capability()
        assert (major, minor) >= (8, 0), f"{torch.cuda.get_device_name()} is older than what precast compiles for"
        assert rank(native_cuda((major, minor))) == 0
