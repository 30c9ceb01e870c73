"""A program for a GPU that is not here: what the runtime asks for when it prepares one, by name and only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from precast.capture import fake_device
from precast.capture.common.captured_frame import CaptureRefused
from precast.runtime.common.errors import PrecastError

Environment = Callable[[], AbstractContextManager[None]]


def stand_ins(model: Any, calls: Sequence[fake_device.Signature]) -> tuple[Any, Sequence[fake_device.Signature], Environment] | None:
    """Copies of the program and its calls, and what they are traced in; None where their tensors are on a GPU. Raises PrecastError."""
    try:
        made = fake_device.stand_ins(model, calls)
    except CaptureRefused as refused:
        raise PrecastError(str(refused)) from refused
    return None if made is None else (*made, fake_device.without_device)


__all__ = ["stand_ins"]
