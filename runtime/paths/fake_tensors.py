"""Fake tensors that represent tensors on a device that this machine does not have (`capture/fake_device.py` makes them).

Guards treat a fake tensor as the tensor that it represents: of that tensor's class, and with an address in memory.
"""

from __future__ import annotations

from typing import Any

import torch

STANDS_FOR = "_precast_stands_for"
"""The key in a fake tensor's `__dict__` that holds the class of the tensor which it represents."""
_ADDRESS_BITS = 48


def class_of(value: Any) -> type:
    """`type(value)`; of a fake tensor the class of the tensor that it represents."""
    cls: type = value.__dict__.get(STANDS_FOR, type(value)) if isinstance(value, torch.Tensor) else type(value)
    return cls


def is_stand_in(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and STANDS_FOR in value.__dict__


def address(value: torch.Tensor) -> int:
    """The address of the tensor's first element; fake tensors with different storages get addresses that are far apart."""
    if not is_stand_in(value):
        return value.data_ptr()
    start: int = value.untyped_storage()._cdata << _ADDRESS_BITS
    return start + int(value.storage_offset()) * value.element_size()


__all__ = ["STANDS_FOR", "address", "class_of", "is_stand_in"]


def storage_of(tensor: torch.Tensor) -> int:
    """The same number for tensors that share a storage."""
    return int(tensor.untyped_storage()._cdata)
