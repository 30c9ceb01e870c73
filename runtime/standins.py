"""Stand-ins: fake tensors in the place of tensors on a device that this machine does not have (`capture/standins.py` makes them).

Guards see through them: a stand-in is of the type of what it stands for, and lies in memory as that would.
"""

from __future__ import annotations

from typing import Any

import torch

STANDS_FOR = "_precast_stands_for"
"""In a stand-in's `__dict__`: the class of what it stands for."""
_ADDRESS_BITS = 48


def class_of(value: Any) -> type:
    """`type(value)`, and of a stand-in the class that it stands for."""
    cls: type = value.__dict__.get(STANDS_FOR, type(value)) if isinstance(value, torch.Tensor) else type(value)
    return cls


def is_stand_in(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and STANDS_FOR in value.__dict__


def address(value: torch.Tensor) -> int:
    """Where the tensor's first element lies; stand-ins of different storages lie far apart."""
    if not is_stand_in(value):
        return value.data_ptr()
    start: int = value.untyped_storage()._cdata << _ADDRESS_BITS
    return start + int(value.storage_offset()) * value.element_size()


__all__ = ["STANDS_FOR", "address", "class_of", "is_stand_in"]


def storage_of(tensor: torch.Tensor) -> int:
    """The same number for tensors that share a storage."""
    return int(tensor.untyped_storage()._cdata)
