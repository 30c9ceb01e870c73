"""Addresses of C symbols of torch and of CUDA's driver, as this process has them loaded."""

from __future__ import annotations

import ctypes
import os

import torch

from precast.runtime.cuda_driver import driver_library, is_driver_symbol
from precast.runtime.locks import Lock

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
    """Address of a C symbol of torch, or of CUDA's driver (`cu…`), or None."""
    for handle in (driver_library(),) if is_driver_symbol(name) else torch_libraries():
        try:
            return ctypes.cast(getattr(handle, name), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None
