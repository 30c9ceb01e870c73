"""The device under test, rows and values on it, and memory that shows what was not written.

`PRECAST_TEST_DEVICE=cpu` runs what needs no GPU of these tests on the CPU: it checks the tests.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.ops.rows import Row, Sampler

DEVICE = os.environ.get("PRECAST_TEST_DEVICE", "cuda")
MISSING = (
    "" if DEVICE == "cpu" or torch.cuda.is_available() else "no CUDA device here: `make test-gpu` on a machine with one runs these tests"
)


def on_device(values: Any, device: str = DEVICE) -> Any:
    """The same values on `device`, with strides, storage offsets and shared storages kept."""
    storages: dict[int, torch.UntypedStorage] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout != torch.strided or value.is_quantized:
            return value.to(device)
        source = value.untyped_storage()
        storage = storages.get(source._cdata)
        if storage is None:
            moved = torch.empty(source.nbytes(), dtype=torch.uint8, device=device)
            moved.copy_(torch.empty(0, dtype=torch.uint8).set_(source))  # type: ignore[call-overload]
            storage = storages[source._cdata] = moved.untyped_storage()
        empty = torch.empty(0, dtype=value.dtype, device=device)
        found: torch.Tensor = empty.set_(storage, value.storage_offset(), value.size(), value.stride())  # type: ignore[call-overload]
        if value.is_conj():
            found = found.conj()
        return torch._neg_view(found) if value.is_neg() else found

    return tree_map(move, values)


FREE_STRIDES = ("sdpa", "upsample/cl")
"""Rows whose strides in eager depend on which of several kernels torch takes on a GPU."""


def row_on_device(row: Row) -> Row:
    """The row with its inputs on the device: drawn on the CPU, so equal to the CPU's for a seed."""
    make, tags = row.make, row.tags
    if DEVICE != "cpu" and row.id.startswith(FREE_STRIDES):
        tags |= {"free_strides"}

    def moved(sampler: Sampler) -> tuple[Any, ...]:
        found: tuple[Any, ...] = on_device(make(sampler))
        return found

    return replace(row, make=moved, tags=tags)


def poison(mebibytes: int = 64) -> None:
    """Fills memory that the caching allocator will hand out next with bytes that are NaN or huge in every dtype."""
    if DEVICE == "cpu":
        return
    small = [torch.full((4096,), 0xFF, dtype=torch.uint8, device=DEVICE) for _ in range(256)]
    large = torch.full((mebibytes << 20,), 0xFF, dtype=torch.uint8, device=DEVICE)
    del small, large


def synchronize() -> None:
    if DEVICE != "cpu":
        torch.cuda.synchronize()
