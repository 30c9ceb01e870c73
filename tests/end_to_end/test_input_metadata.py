"""Programs that change the shape, strides or storage of their inputs in place: what the caller sees is eager's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import precast


def transposing(x: torch.Tensor) -> Any:
    x.t_()
    return x + 1


def unsqueezing(x: torch.Tensor) -> Any:
    y = x.sin()
    x.unsqueeze_(0)
    return y + x


def written_and_transposed(x: torch.Tensor) -> Any:
    y = x * 2
    x.add_(1)
    x.transpose_(0, 1)
    return y, x


def resizing(x: torch.Tensor) -> Any:
    x.resize_(2, 2)
    return x + 1


def swapping_storage(x: torch.Tensor) -> Any:
    x.set_(torch.arange(6.0))
    return x * 2


@torch.no_grad()
@pytest.mark.parametrize("program", [transposing, unsqueezing, written_and_transposed, resizing, swapping_storage])
def test_metadata_of_inputs(program: Callable[[torch.Tensor], Any], tmp_path: Path) -> None:
    compiled = precast.compile(program, store=tmp_path)
    for _ in range(3):
        x = torch.randn(3, 4)
        mine = x.clone()
        got, want = compiled(mine), program(x)
        torch.testing.assert_close(got, want, check_stride=True)
        torch.testing.assert_close(mine, x, check_stride=True)
        assert mine.storage_offset() == x.storage_offset()
        if isinstance(want, tuple):
            assert got[1] is mine
