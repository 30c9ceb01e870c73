"""What torch says while it traces: no warning names a line of precast's, and what becomes a refusal is not printed as well."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
_TRIED = "failed while attempting to run meta"
"""Begins what torch logs, with a stack, of an operator that does not take some sizes: the operator's words are in the refusal."""
_PACKAGES = ("torch", "precast")


@contextlib.contextmanager
def tracer_words() -> Iterator[None]:
    """While this thread traces."""
    mine, original = threading.get_ident(), warnings.warn

    def warn(message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any) -> None:
        named = _frame(stacklevel)
        ours = threading.get_ident() == mine and named is not None and _package(named) == "precast"
        original(message, category, _own_level() if ours else stacklevel + 1, *args, **kwargs)

    def wanted(record: logging.LogRecord) -> bool:
        return threading.get_ident() != mine or not str(record.msg).startswith(_TRIED)

    _FAKE_TENSORS.addFilter(wanted)
    try:
        with mock.patch.object(warnings, "warn", warn):
            yield
    finally:
        _FAKE_TENSORS.removeFilter(wanted)


def _frame(level: int) -> Any:
    """The frame that the caller's caller names by this `stacklevel`."""
    frame: Any = sys._getframe(2)
    for _ in range(level - 1):
        frame = frame.f_back if frame is not None else None
    return frame


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _own_level() -> int:
    """The `stacklevel` with which the caller's call of `warnings.warn` shows the innermost line outside of torch and precast."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and _package(frame) in (*_PACKAGES, "contextlib", "unittest"):
        level, frame = level + 1, frame.f_back
    return level


__all__ = ["tracer_words"]
