"""AtenTensorHandles, by which C code is given tensors: made of a tensor, and turned back into one."""

from __future__ import annotations

import ctypes

import torch
from torch._C import _aoti

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_capsule_new = ctypes.pythonapi.PyCapsule_New
_capsule_new.restype, _capsule_new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def new_handle(tensor: torch.Tensor) -> int:
    """A new AtenTensorHandle on `tensor`, owned by whoever takes it."""
    pointer: int = _capsule_pointer(_aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None)
    return pointer


def take_handle(handle: int) -> torch.Tensor:
    """The tensor that `handle` owns; the handle is consumed (torch's function for a single tensor would leave it)."""
    tensor: torch.Tensor = _aoti.alloc_tensors_by_stealing_from_void_ptrs([_capsule_new(handle, None, None)])[0]
    return tensor
