"""A warning while a compile takes so long that other ranks, which wait for this one in a collective, come near their time-out."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from precast.runtime.common.log import logger

NEAR = 0.5
"""The share of the time-out after which a warning is due."""


@contextmanager
def near_time_outs(name: str) -> Iterator[None]:
    """Warns where what is done inside takes longer than `NEAR` of the default process group's time-out. `name`: what is compiled."""
    seconds = _time_out()
    if seconds is None:
        yield
        return
    timer = threading.Timer(NEAR * seconds, _warn, (name, seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _warn(name: str, seconds: float) -> None:
    logger("compile").warning(
        "%s has been compiling for %.3g s on this rank, and collectives of the default process group time out after %.3g s: a rank that "
        "waits for this one in a collective fails then. Give init_process_group a longer timeout=, or compile ahead (precast build)",
        name,
        NEAR * seconds,
        seconds,
    )


def _time_out() -> float | None:
    """Seconds after which collectives of the default group fail; None where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    world: Any = distributed.group.WORLD
    try:
        backends = [world._get_backend(device) for device in world._device_types]
        return min(float(backend.options._timeout.total_seconds()) for backend in backends)
    except (AttributeError, RuntimeError, ValueError) as error:
        logger("compile").info("the time-out of the default process group is not known: %s", error)
        return None


__all__ = ["near_time_outs"]
