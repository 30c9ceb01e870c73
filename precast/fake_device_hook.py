"""Precompiling for a GPU that this machine does not have: the hook that the runtime imports by name when it precompiles such a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from precast.capture import fake_device
from precast.capture.common.captured_frame import CaptureRefused
from precast.runtime.common.errors import PrecastError

Environment = Callable[[], AbstractContextManager[None]]


def stand_ins(model: Any, calls: Sequence[fake_device.Signature]) -> tuple[Any, Sequence[fake_device.Signature], Environment] | None:
    """Copies of the program and its calls with fake GPU tensors, and the fake mode for tracing; None where their tensors are on a GPU.
    Raises PrecastError."""
    try:
        made = fake_device.stand_ins(model, calls)
    except CaptureRefused as refused:
        raise PrecastError(str(refused)) from refused
    return None if made is None else (*made, fake_device.without_device)


__all__ = ["stand_ins"]
