"""Arguments of calls as plain data, and back: what a call looks like without what is in its tensors."""

from __future__ import annotations

from typing import Any

import torch

from precast.artifact_store.statistics.recorded_calls import Data

_DEPTH, _ITEMS = 8, 1024
"""How deep containers are described, and how many of their items: what goes on is unknown."""
_LONGEST_TEXT = 64
"""Characters of a text that is recorded by its value; a longer one may be what a user wrote, and is unknown."""
_SCALARS = (bool, int, type(None))


def to_data(value: Any, depth: int = _DEPTH) -> Data:
    """A value as data; `{"unknown": "module:qualname"}` for what no build can make again."""
    kind = type(value)
    if kind in _SCALARS or (kind is str and len(value) <= _LONGEST_TEXT):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _tensor(value)
    if kind is torch.dtype:
        return {"dtype": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": value.type}
    if depth and kind in (list, tuple, torch.Size) and len(value) <= _ITEMS:
        name = "size" if kind is torch.Size else kind.__name__
        return {name: [to_data(item, depth - 1) for item in value]}
    if depth and kind is dict and len(value) <= _ITEMS:
        return {"dict": [[to_data(key, depth - 1), to_data(item, depth - 1)] for key, item in value.items()]}
    return {"unknown": f"{kind.__module__}:{kind.__qualname__}"}


def _tensor(value: torch.Tensor) -> Data:
    if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.device.type == "meta":
        return {"unknown": f"a tensor of layout {value.layout} on {value.device.type}"}
    dtype = str(value.dtype).removeprefix("torch.")
    return {"tensor": [dtype, list(value.shape), list(value.stride()), value.device.type, value.requires_grad]}


def from_data(data: Data) -> Any:
    """The value that the data describes; tensors hold zeros. Raises ValueError for what cannot be made."""
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    match kind:
        case "tensor":
            return _zeros(*content)
        case "float":
            return float.fromhex(content)
        case "complex":
            return complex(*map(float.fromhex, content))
        case "dtype":
            return _dtype(content)
        case "device":
            return torch.device(content)
        case "list":
            return [from_data(item) for item in content]
        case "tuple":
            return tuple(from_data(item) for item in content)
        case "size":
            return torch.Size(content)
        case "dict":
            return {from_data(key): from_data(item) for key, item in content}
    raise ValueError(f"{content} cannot be made from its record")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"this torch has no dtype {name!r}")
    return found


def _is_here(device: str) -> bool:
    """Whether this machine has such a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # unknown, not compiled in, or absent
        return False
    return True


_LARGEST = 1 << 36
"""Bytes of one tensor that a record may ask for."""


def _zeros(dtype: str, shape: list[int], stride: list[int], device: str, requires_grad: bool) -> torch.Tensor:
    """Zeros of this form; on the CPU where this machine has no such device."""
    extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) if 0 not in shape else 0
    if any(number < 0 for number in (*shape, *stride)) or extent * _dtype(dtype).itemsize > _LARGEST:
        raise ValueError(f"a tensor of shape {shape} and strides {stride} cannot be made")
    made = torch.empty_strided(shape, stride, dtype=_dtype(dtype), device=device if _is_here(device) else None).zero_()
    return made.requires_grad_() if requires_grad else made


__all__ = ["from_data", "to_data"]
