"""A schedule does not depend on the order in which Python happens to walk sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[3]
SEEDS = ("0", "1", "2", "3")


class Norm(nn.Module):
    """Over channels, which stand in front."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """ConvNext's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.narrow(nn.functional.gelu(self.wide(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


def schedule_text() -> str:
    from precast.lowering.ir.text import program_text
    from tests.ops.runners import program_of

    model = nn.Sequential(nn.Conv2d(3, 32, 4, 4), Norm(32), Block(32), Norm(32), nn.Conv2d(32, 64, 2, 2), Block(64), Block(64)).eval()

    def call(x: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
        result = torch.func.functional_call(model, weights, (x,))
        assert isinstance(result, torch.Tensor)
        return result

    with torch.no_grad():
        program, _ = program_of(call, (torch.randn(2, 3, 64, 64), dict(model.named_parameters())), schedule=True)
    return program_text(program)


def test_one_schedule_for_every_hash_seed() -> None:
    command = [sys.executable, "-m", "tests.lowering.passes.test_schedule_determinism"]
    started = [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True) for seed in SEEDS
    ]
    texts = [process.communicate(timeout=300)[0] for process in started]
    assert not any(process.returncode for process in started)
    assert "kernel" in texts[0] and len(set(texts)) == 1


if __name__ == "__main__":
    print(schedule_text())
