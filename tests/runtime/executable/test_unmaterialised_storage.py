"""Tensors with elements and no memory, which FSDP makes by resizing storages to 0 bytes: refused by name, never read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import precast
from precast.runtime.native import loader


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(32, 16)
        self.register_buffer("shift", torch.randn(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x) + self.shift)


TENSORS = {"x": "x", "weight": "self.inner.weight", "bias": "self.inner.bias", "shift": "self.shift"}


def tensor(model: Layer, x: torch.Tensor, name: str) -> torch.Tensor:
    return x if name == "x" else model.shift if name == "shift" else model.inner.get_parameter(name)


@pytest.fixture(params=["native", "python"])
def runtime(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(loader, "loaded", lambda: None)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["plain", "freeze"])
def test_a_tensor_without_memory_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    for name, path in TENSORS.items():
        model, x = Layer(), torch.randn(8, 32)
        compiled = precast.compile(model, store=tmp_path, options=options)
        gone = tensor(model, x, name)
        values, size = gone.clone(), gone.untyped_storage().size()
        gone.untyped_storage().resize_(0)
        for _ in range(3):
            with pytest.raises(RuntimeError, match=f"^{path} has elements but no memory: .* give it its memory back"):
                compiled(x)
        gone.untyped_storage().resize_(size)
        gone.copy_(values)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.usefixtures("runtime")
def test_memory_freed_after_the_first_calls(tmp_path: Path) -> None:
    model, x = Layer(), torch.randn(8, 32)
    compiled = precast.compile(model, store=tmp_path)
    for name, path in TENSORS.items():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
        gone = tensor(model, x, name)
        values, size = gone.clone(), gone.untyped_storage().size()
        gone.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match=f"^{path} has elements but no memory"):
            compiled(x)
        gone.untyped_storage().resize_(size)
        gone.copy_(values)


@pytest.mark.usefixtures("runtime")
def test_a_view_of_freed_memory_is_named(tmp_path: Path) -> None:
    """Its address is not 0, but its place in the storage: what FSDP's parameters are."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sort(x + 1)[0] @ y

    compiled = precast.compile(program, store=tmp_path)
    for _ in range(2):
        flat, y = torch.randn(200), torch.randn(8, 4)
        x, gone = flat[8:72].view(8, 8), flat[2:34].view(8, 4)
        torch.testing.assert_close(compiled(x, y), program(x, y))
        flat.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="^x has elements but no memory"):
            compiled(x, y)
        with pytest.raises(RuntimeError, match="^y has elements but no memory"):
            compiled(torch.randn(200)[8:72].view(8, 8), gone)


def test_tensors_without_elements_need_no_memory(tmp_path: Path) -> None:
    def rows(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    dynamic = precast.compile(rows, store=tmp_path, dynamic=True)
    assert dynamic(torch.randn(6, 4)).shape == (6, 4)
    assert dynamic(torch.empty(0, 4)).shape == (0, 4)
    gone = torch.randn(7, 4)
    gone.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="^x has elements but no memory"):
        dynamic(gone)


def test_what_reads_only_the_size_needs_no_memory(tmp_path: Path) -> None:
    def size(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y + x.shape[0]

    x, y = torch.randn(8, 4), torch.randn(3)
    x.untyped_storage().resize_(0)
    torch.testing.assert_close(precast.compile(size, store=tmp_path)(x, y), y + 8)


@pytest.mark.filterwarnings("ignore:precast. .* runs eagerly. the traced code gives or takes a tensor's memory")
def test_a_program_that_gives_memory_back_itself(tmp_path: Path) -> None:
    def gather(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.untyped_storage().resize_(256 * 4)
        x.copy_(y)
        result = x * 2
        x.untyped_storage().resize_(0)
        return result

    compiled, x, y = precast.compile(gather, store=tmp_path), torch.randn(256), torch.randn(256)
    x.untyped_storage().resize_(0)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), y * 2)
        assert x.untyped_storage().size() == 0
