"""NVIDIA GPUs of this machine and what each can run, asked of NVML: a process that has not started CUDA stays so, and may still fork."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


@dataclass(frozen=True)
class Device:
    """One GPU. `capability`: (major, minor) of its compute capability."""

    name: str
    uuid: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Driver:
    """`version` as its vendor writes it ("580.82.07"); `cuda`: the newest CUDA that it knows, (13, 0)."""

    version: str
    cuda: tuple[int, int]


@dataclass(frozen=True)
class Machine:
    """Every GPU that the driver has, in the order of its bus; `driver` is None where there is none to ask."""

    driver: Driver | None
    devices: tuple[Device, ...]


class _Failed(Exception):
    """NVML does not answer."""


class _Nvml:
    """The few questions that are put to NVML, through ctypes. Raises _Failed."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise _Failed(str(error)) from error
        self.ask("nvmlInit_v2")

    def ask(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise _Failed(f"this driver's NVML has no {name}")
        code = function(*arguments)
        if code:
            raise _Failed(f"{name} gave {code}")

    def text(self, name: str, *given: Any) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.ask(name, *given, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def machine(self) -> Machine:
        number = ctypes.c_int()
        self.ask("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(number))
        count = ctypes.c_uint()
        self.ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        driver = Driver(self.text("nvmlSystemGetDriverVersion"), cuda_version(number.value))
        return Machine(driver, tuple(self.device(index) for index in range(count.value)))

    def device(self, index: int) -> Device:
        handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        self.ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        self.ask("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        return Device(self.text("nvmlDeviceGetName", handle), self.text("nvmlDeviceGetUUID", handle), (major.value, minor.value))


def cuda_version(number: int) -> tuple[int, int]:
    """13000 -> (13, 0)."""
    return number // 1000, number % 1000 // 10


@functools.cache
def machine() -> Machine:
    """What NVML says, once per process; no driver where it says nothing."""
    try:
        return _Nvml().machine()
    except _Failed:
        return Machine(None, ())


def visible(devices: Sequence[Device], setting: str | None) -> tuple[Device, ...]:
    """The devices that CUDA shows under this value of CUDA_VISIBLE_DEVICES.

    It counts the devices that it shows in an order of its own where they are of several kinds; an index then stands for any of them.
    """
    if setting is None:
        return tuple(devices)
    found: list[Device] = []
    for word in filter(None, (part.strip() for part in setting.split(","))):
        if word.lstrip("-").isdecimal():
            if not 0 <= int(word) < len(devices):
                break  # CUDA stops at the first that there is not
            alike = len({device.capability for device in devices}) == 1
            found += [devices[int(word)]] if alike else devices
        elif word.startswith("MIG-"):
            found += devices  # a part of one of them
        else:
            found += [device for device in devices if device.uuid.startswith(word)]
    return tuple(dict.fromkeys(found))


def capabilities() -> tuple[tuple[int, int], ...]:
    """Compute capabilities of the GPUs that torch can use in this process, each once; none where this torch is built without CUDA."""
    import torch

    if torch.version.cuda is None:
        return ()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _started()
    return tuple(dict.fromkeys(device.capability for device in visible(machine().devices, os.environ.get(VISIBLE))))


def unknown() -> bool:
    """Whether there may be GPUs all the same: NVML is not there to ask (as in some containers), and CUDA has not been started."""
    import torch

    return machine().driver is None and torch.version.cuda is not None and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


@functools.cache
def _started() -> tuple[tuple[int, int], ...]:
    """What CUDA itself says; it has been started, and what it shows stays."""
    import torch

    return tuple(dict.fromkeys(map(torch.cuda.get_device_capability, range(torch.cuda.device_count()))))


__all__ = ["Device", "Driver", "Machine", "capabilities", "cuda_version", "machine", "unknown", "visible"]
