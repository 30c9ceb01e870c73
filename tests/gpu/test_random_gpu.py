"""Random numbers of precast's own, on the device: Philox's from the keys that torch's generator gives, CUDA graphs or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import precast
from precast.lowering.verify.philox import philox
from tests.gpu.device import DEVICE, poison

pytestmark = pytest.mark.gpu


def drawn(x: Tensor) -> tuple[Tensor, ...]:
    return torch.rand_like(x) + x, torch.randn_like(x), F.dropout(x + 1, 0.25, True)


@pytest.mark.parametrize("replayed", [False, True])
def test_seeds_repeat_them_and_calls_draw_afresh(replayed: bool, tmp_path: Path) -> None:
    options = {"fallback_random": False, "triton.cudagraphs": replayed}
    call = precast.compile(drawn, store=tmp_path, fullgraph=True, options=options)
    x = torch.zeros(300, 1000, device=DEVICE)
    with torch.inference_mode():
        runs = []
        for number in range(8):
            torch.manual_seed(number % 4)
            poison()
            runs.append([tuple(t.cpu() for t in call(x)) for _ in range(2)])
            torch.manual_seed(number % 4)
            key = torch.randint((1 << 63) - 1, (3,), device=DEVICE)[0].cpu()
            want = (philox(key, torch.arange(x.numel())) >> 8).float() * 2**-24
            assert torch.equal(runs[-1][0][0].flatten(), want)
    for first, again in zip(runs[:4], runs[4:], strict=True):
        for a, b in zip(first, again, strict=True):
            assert all(map(torch.equal, a, b))
        assert not any(map(torch.equal, *first))
    _, normal, kept = runs[0][0]
    assert abs(normal.mean()) < 0.01 and abs(normal.std() - 1) < 0.01 and not normal.isinf().any()
    assert abs((kept != 0).double().mean() - 0.75) < 0.01 and kept.unique().numel() == 2
