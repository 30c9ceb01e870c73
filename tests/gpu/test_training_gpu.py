"""Calls that record gradients on a GPU: the programs of tests/training, as eager, and a loop with dropout and reduced precision."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import precast
from tests.training.gradient_programs import PROGRAMS, Program
from tests.training.test_gradients import run

pytestmark = pytest.mark.gpu
_ON_CPU = {"linear_algebra": "it makes its identity matrix on the CPU"}


@pytest.fixture(autouse=True)
def recording():  # type: ignore[no-untyped-def]
    with torch.enable_grad():
        yield


@pytest.mark.parametrize("program", [p for p in PROGRAMS if p.name not in _ON_CPU], ids=lambda program: program.name)
def test_as_eager(program: Program, tmp_path: Path) -> None:
    run(program, tmp_path, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loop(dtype: torch.dtype, tmp_path: Path) -> None:
    """Twenty steps of a small transformer with dropout: losses as eager's under the same seeds."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        eager = nn.Sequential(nn.Embedding(100, 64), layer, nn.Linear(64, 100)).to(dtype)
        data = torch.randint(0, 100, (20, 4, 32))
    losses = []
    for model, called in ((eager, None), (copied := copy.deepcopy(eager), precast.compile(copied, store=tmp_path))):
        optimizer, found = torch.optim.AdamW(model.parameters(), 1e-3), []
        for step, batch in enumerate(data):
            torch.manual_seed(step)
            logits = (called or model)(batch)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(loss.detach()))
        losses.append(found)
    assert losses[0][-1] < losses[0][0] - 0.2
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-2 if dtype is torch.bfloat16 else 1e-3, atol=0)


def test_what_is_kept_may_wait_on_the_host(tmp_path: Path) -> None:
    """`save_on_cpu` gives images back in contiguous memory, whatever their layout was."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        images = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3))
        x = torch.randn(4, 3, 32, 32)
    twin = copy.deepcopy(images)
    compiled = precast.compile(images, store=tmp_path, fullgraph=True)
    with torch.autograd.graph.save_on_cpu():
        compiled(x).square().sum().backward()
    twin(x).square().sum().backward()
    for got, want in zip(images.parameters(), twin.parameters(), strict=True):
        assert got.grad is not None and want.grad is not None
        scale = float(want.grad.abs().max()) + 1
        torch.testing.assert_close(got.grad / scale, want.grad / scale, rtol=1e-2, atol=2e-3)
