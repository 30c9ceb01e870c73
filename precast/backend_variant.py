"""Variants whose graph another backend compiled, with precast's capture, guards and dispatch. They exist in this process only."""

from __future__ import annotations

import threading
from typing import Any

from precast import __version__
from precast.artifact_store import Manifest, Versions
from precast.capture import CapturedFrame
from precast.runtime.backends import Backend
from precast.runtime.compatibility import LOWERING_VERSION, python_minor, torch_minor
from precast.runtime.errors import InProcess, Refused
from precast.runtime.log import warn
from precast.runtime.program import Program

_lock = threading.Lock()
_told: set[str] = set()


def backend_variant(program: Program, backend: Backend, frame: CapturedFrame) -> InProcess:
    """A variant around `frame.compiled`, for the runtime to guard and call. Raises Refused where the frame's bytecode cannot be rebuilt."""
    if frame.code is None:
        raise Refused("; ".join(frame.uncacheable) or "its bytecode cannot be kept")
    _tell_once(backend)
    manifest = Manifest.make(
        program_key=program.key,
        program_name=program.name,
        target=program.target,
        versions=Versions(lowering=LOWERING_VERSION, torch=torch_minor(), python=python_minor(), compiler=f"backend {backend.name}"),
        options={},
        guards=frame.guards,
        frames=[_record(frame)],
        waived=frame.waived,
        digests={f"{d.module}:{d.qualname}#{d.digest[:6]}": d.digest for d in frame.digests},
        graphs={},
        blobs={},
        precast_version=__version__,
    )
    return InProcess(manifest, {}, f"what the backend {backend.name!r} makes cannot be stored", frame.compiled)


def _record(frame: CapturedFrame) -> dict[str, Any]:
    assert frame.code is not None
    return {
        "name": frame.name,
        "code": frame.code.to_data(),
        "inputs": [item.to_data() for item in frame.inputs],
        "outputs": [item.to_data() for item in frame.outputs],
    }


def _tell_once(backend: Backend) -> None:
    with _lock:
        new = backend.name not in _told and not backend.quiet
        _told.add(backend.name)
    if new:
        warn(
            f"precast: what the backend {backend.name!r} compiles lives in this process only: nothing is stored, and a fresh process "
            "compiles again (the backend 'precast' stores)"
        )
