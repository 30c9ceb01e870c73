"""Which kind of call this is, as far as that can be told before the call is captured: calls of one kind are compiled one after another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from precast.runtime.paths.torch_state import global_state

_DEPTH = 4
_ITEMS = 64
"""How far into containers is looked, and at how many of their items."""
_BY_VALUE = (bool, type(None), str, bytes, torch.dtype, torch.device, torch.layout)
_NUMBERS = (int, float, complex)


def call_kind(local_values: Mapping[str, Any], of: tuple[str, ...], exact: bool) -> str:
    """A digest of what the arguments are and of the state that the call is made in; the same in every process.

    `of`: what else tells calls apart. `exact`: sizes and numbers count, since what is compiled for some serves no others. Two calls of one
    kind may need two artifacts, and calls of two kinds may share one: whoever asks loses time by that and nothing else.
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
