"""What torch says while it traces: no warning names a line of precast's, and what becomes a refusal is not printed as well."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from precast.capture.common.patching import patched

_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
_TRIED = "failed while attempting to run meta"
"""Begins what torch logs, with a stack, of an operator that does not take some sizes: the operator's words are in the refusal."""
_PACKAGES = ("torch", "precast", "contextlib", "unittest")


@contextlib.contextmanager
def tracer_words() -> Iterator[None]:
    """While this thread traces. `warnings.warn` stays the function that it is: the traced code may call it."""
    mine, original = threading.get_ident(), warnings._showwarnmsg  # type: ignore[attr-defined]

    def show(message: Any) -> None:
        line = _callers_line(message) if threading.get_ident() == mine else None
        if line is not None:
            message.filename, message.lineno = line
        original(message)

    def wanted(record: logging.LogRecord) -> bool:
        return threading.get_ident() != mine or not str(record.msg).startswith(_TRIED)

    _FAKE_TENSORS.addFilter(wanted)
    try:
        with patched(warnings, "_showwarnmsg", show):
            yield
    finally:
        _FAKE_TENSORS.removeFilter(wanted)


def _callers_line(message: Any) -> tuple[str, int] | None:
    """Of a warning that names a line of precast's: the innermost line outside of torch and precast that led to it."""
    frame: Any = sys._getframe(2)
    while frame is not None and (frame.f_code.co_filename, frame.f_lineno) != (message.filename, message.lineno):
        frame = frame.f_back
    if frame is None or _package(frame) != "precast":
        return None
    while frame.f_back is not None and _package(frame) in _PACKAGES:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _package(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


__all__ = ["tracer_words"]
