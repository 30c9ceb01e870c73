"""Addresses of C symbols of torch and of a device's driver, as this process has them loaded."""

from __future__ import annotations

import ctypes
import os

import torch

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
