"""The findings of `precast doctor` about GPUs: driver, devices, what each runs and why."""

from __future__ import annotations

from collections.abc import Iterator

from precast.runtime.targets import nvidia_devices
from precast.runtime.targets.cuda import PTX, PTX_CUDA, cuda_ladder

Line = tuple[bool, str]
"""Whether all is well, and the text."""


def findings() -> Iterator[Line]:
    """One line each; starts no CUDA."""
    machine = nvidia_devices.machine()
    if machine.driver is None:
        yield True, "no NVIDIA driver here: artifacts for GPUs can be built and not run"
        return
    yield _driver(machine.driver)
    seen = nvidia_devices.capabilities()
    for number, device in enumerate(machine.devices):
        yield _device(number, device, device.capability in seen)
    if machine.devices and not seen:
        yield False, f"torch uses none of them: it is built without CUDA, or {nvidia_devices.VISIBLE} hides them"
    if len(seen) > 1:
        yield True, "they are of several kinds: each call takes the artifact that the device of its tensors runs"


def _driver(driver: nvidia_devices.Driver) -> Line:
    reads = driver.cuda >= PTX_CUDA
    needed = ".".join(map(str, PTX_CUDA))
    ptx = f"{PTX}, which needs {needed}, can be read" if reads else f"too old for {PTX}, which needs {needed}"
    return reads, f"NVIDIA driver {driver.version}, CUDA {'.'.join(map(str, driver.cuda))}: {ptx}"


def _device(number: int, device: nvidia_devices.Device, seen: bool) -> Line:
    ladder = cuda_ladder(device.capability)
    capability = ".".join(map(str, device.capability))
    head = f"GPU {number}: {device.name}, compute capability {capability}"
    if not ladder:
        return False, f"{head}: precast makes nothing for it (8.0 or newer is needed)"
    first, *rest = ladder
    order = f"{head}: takes {first}" + (f", else {', else '.join(rest)}" if rest else "")
    why = (
        "images made for 9.0 and newer run on that very architecture only"
        if device.capability >= (9, 0)
        else "images for a lower 8.x run too"
    )
    return True, f"{order} ({why}; the driver compiles PTX once){'' if seen else '; not visible to this process'}"


__all__ = ["findings"]
