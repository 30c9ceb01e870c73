"""Torch from C: addresses of its symbols and of a device's driver, as this process has them loaded, and tensors as handles of its C ABI."""

from __future__ import annotations

import ctypes
import os

import torch
from torch._C import _aoti

from precast.runtime.common.locks import Lock
from precast.runtime.targets.rules import DeviceLoader
from precast.target_registry import family_of_symbol, load

_TORCH_LIBRARIES = ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so", "libtorch.so")
_lock = Lock()
_torch_handles: list[ctypes.CDLL] = []


def torch_libraries() -> list[ctypes.CDLL]:
    """torch's shared objects as this process has them open (never opened anew)."""
    with _lock:
        if not _torch_handles:
            folder = os.path.join(os.path.dirname(torch.__file__), "lib")
            for name in _TORCH_LIBRARIES:
                try:
                    _torch_handles.append(ctypes.CDLL(os.path.join(folder, name), mode=os.RTLD_NOLOAD | os.RTLD_LAZY))
                except OSError:
                    continue  # not part of this build of torch; a symbol that is then missing is reported by name
        return _torch_handles


def resolve_symbol(name: str) -> int | None:
    """Address of a C symbol of torch, or of a device's driver (`cuLaunchKernel`), or None."""
    loader = driver_of(name)
    if loader is not None:
        return loader.address(name)
    for handle in torch_libraries():
        try:
            return ctypes.cast(getattr(handle, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


def driver_of(name: str) -> DeviceLoader | None:
    """What knows the driver that has the function of this name; None for a function of torch's."""
    family = family_of_symbol(name)
    loader: DeviceLoader | None = None if family is None else load(family.loader)
    return loader


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
