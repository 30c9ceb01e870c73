"""What one machine cannot compile is not remembered in a store that others share."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

import precast
from precast.artifact_store import Store
from precast.codegen.common.toolchain import CompilerMissing
from precast.codegen.cpu import backend


def part(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print("between", end="")
    return part(y) + 1


def no_compiler() -> None:
    raise CompilerMissing("no C++ compiler")


def test_a_part_that_met_no_compiler_compiles_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(size: int) -> bool:
        """Whether the call stored anything, in what stands for a new process."""
        precast.reset()
        before = sum(1 for _ in tmp_path.glob("programs/*/*"))
        x = torch.randn(size, 3)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = precast.compile(broken, store=Store(tmp_path), dynamic=False)(x)
        torch.testing.assert_close(result, part(x.sin()) + 1)
        return sum(1 for _ in tmp_path.glob("programs/*/*")) > before

    assert call(4)
    # the first graph is there for this size, what follows the break is not
    for folder in tmp_path.glob("programs/*.*"):
        for artifact in folder.iterdir():
            artifact.unlink()
    with monkeypatch.context() as without:
        without.setattr(backend, "find_compiler", no_compiler)
        assert not call(4)
    assert call(4)
