"""Variants whose graph another backend compiled, with precast's capture, guards and dispatch. They exist in this process only."""

from __future__ import annotations

import threading

from precast.capture import CapturedFrame
from precast.compiling.publish import identity_of_frame
from precast.runtime.common.errors import InProcess, Refused
from precast.runtime.common.log import warn
from precast.runtime.programs.program import Program
from precast.runtime.settings.backends import Backend

_lock = threading.Lock()
_told: set[str] = set()


def backend_variant(program: Program, backend: Backend, frame: CapturedFrame) -> InProcess:
    """A variant around `frame.compiled`, for the runtime to guard and call. Raises Refused where the frame's bytecode cannot be rebuilt."""
    if frame.code is None:
        raise Refused("; ".join(frame.uncacheable) or "its bytecode cannot be kept")
    _tell_once(backend)
    manifest = identity_of_frame(program, frame, program.target, f"backend {backend.name}", {}).planned()
    return InProcess(manifest, {}, f"what the backend {backend.name!r} makes cannot be stored", frame.compiled)


def _tell_once(backend: Backend) -> None:
    with _lock:
        new = backend.name not in _told and not backend.quiet
        _told.add(backend.name)
    if new:
        warn(
            f"precast: what the backend {backend.name!r} compiles lives in this process only: nothing is stored, and a fresh process "
            "compiles again (the backend 'precast' stores)"
        )
