"""Tensors that a record carries, made once per device: those for a GPU go where the graph's other tensors are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from precast.artifact_store.format.records import TensorConstant
from precast.target_registry import computes_on


class Constants:
    """The tensors of some records. `placed`: some of them are for a GPU, so that the device matters."""

    def __init__(self, records: Iterable[TensorConstant]) -> None:
        self._records = tuple(records)
        self._made: dict[torch.device | None, tuple[torch.Tensor, ...]] = {}
        self.placed = any(record.device != "cpu" for record in self._records)

    def on(self, device: torch.device | None = None) -> Sequence[torch.Tensor]:
        """The tensors, those for a GPU on `device` (None: torch's current one)."""
        found = self._made.get(device)
        if found is None:
            made = tuple(_tensor(record, device or torch.device(record.device)) for record in self._records)
            found = self._made.setdefault(device, made)
        return found


def gpu_of(values: Iterable[Any]) -> torch.device | None:
    """The device of the first tensor on a GPU."""
    return next((value.device for value in values if isinstance(value, torch.Tensor) and computes_on(value.device.type)), None)


def _tensor(record: TensorConstant, device: torch.device) -> torch.Tensor:
    dtype = getattr(torch, record.dtype)
    place = device if record.device != "cpu" else torch.device("cpu")
    if not record.data:
        return torch.empty(record.size, dtype=dtype, device=place)
    return torch.frombuffer(bytearray(record.data), dtype=dtype).reshape(record.size).to(place)


__all__ = ["Constants", "gpu_of"]
