"""The kind of a call, known before it is captured; processes that miss calls of one kind compile one after another
(`runtime/programs/single_flight.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from precast.runtime.paths.torch_state import global_state

_DEPTH = 4
_ITEMS = 64
"""How deep containers are searched, and how many of their items count."""
_BY_VALUE = (bool, type(None), str, bytes, torch.dtype, torch.device, torch.layout)
_NUMBERS = (int, float, complex)


def call_kind(local_values: Mapping[str, Any], of: tuple[str, ...], exact: bool) -> str:
    """A digest of the arguments' types and of torch's state during the call; the same in every process.

    `of`: further texts that tell calls apart. `exact`: sizes and numbers count, for programs without symbolic sizes. Two calls of one kind
    may need two artifacts, and calls of two kinds may share one: that costs time and nothing else.
    """
    whole = (of, sorted(global_state().items()), _items(local_values, exact, _DEPTH))
    return hashlib.sha256(repr(whole).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _items(values: Mapping[Any, Any], exact: bool, depth: int) -> list[Any]:
    first = list(values.items())[:_ITEMS]
    return [(key if type(key) in (str, int) else type(key).__qualname__, _kind(value, exact, depth - 1)) for key, value in first]


def _kind(value: Any, exact: bool, depth: int) -> Any:
    kind = type(value)
    name = f"{kind.__module__}:{kind.__qualname__}"
    if kind in _NUMBERS:
        return value if exact else name
    if kind in _BY_VALUE:
        return value
    if isinstance(value, torch.Tensor):
        size = tuple(value.shape) if exact and not value.is_nested else value.dim()
        return name, str(value.dtype), value.device.type, str(value.layout), value.requires_grad, size
    if isinstance(value, torch.nn.Module):
        return name, value.training
    if kind in (tuple, list) and depth:
        return name, len(value), [_kind(item, exact, depth - 1) for item in value[:_ITEMS]]
    if kind is dict and depth:
        return name, len(value), _items(value, exact, depth)
    return name


__all__ = ["call_kind"]
