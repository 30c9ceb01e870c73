"""CUDA's driver library, opened at run time: compiled GPU graphs launch their kernels by its functions."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence

_NAME = "libcuda.so.1"


@functools.cache
def driver_library() -> ctypes.CDLL | None:
    """The driver, or None where this machine has none. Opening it starts nothing."""
    try:
        return ctypes.CDLL(_NAME, mode=os.RTLD_LAZY | os.RTLD_GLOBAL)
    except OSError:
        return None


def driver_problem(missing: Sequence[str]) -> str:
    """Why these functions of the driver could not be found."""
    if driver_library() is None:
        return f"no NVIDIA driver ({_NAME}) is installed here"
    return f"the NVIDIA driver of this machine is too old, it lacks {', '.join(missing)}"
