"""What a library for a CUDA target needs before it is loaded: functions of the driver by name, and images as the driver takes them.

The library loads the images itself (`load_kernel` in `codegen/cuda/host/templates.py`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from precast.artifact_store.trust.trusted import Trusted
from precast.runtime.executable.ptx import loadable
from precast.runtime.native.cuda_driver import driver_library, driver_problem
from precast.runtime.targets.rules import DeviceLoader


class CudaLoader(DeviceLoader):
    def address(self, name: str) -> int | None:
        function = getattr(driver_library(), name, None)
        return None if function is None else ctypes.cast(function, ctypes.c_void_p).value

    def problem(self, missing: Sequence[str]) -> str:
        return f"runs on an NVIDIA GPU: {driver_problem(missing)}"

    def images(self, images: Sequence[Trusted[bytes]], source: Any) -> list[Trusted[bytes]]:
        return loadable(images, source)


LOADER = CudaLoader()

__all__ = ["LOADER", "CudaLoader"]
