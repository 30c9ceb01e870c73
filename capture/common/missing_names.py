"""Names that this torch lacks and that the code here uses while it captures: a refusal, so that the program runs eagerly."""

from __future__ import annotations

import contextlib
import traceback
import types
from collections.abc import Iterator

import torch

from precast.capture.common.captured_frame import CaptureRefused
from precast.runtime.common.errors import strict
from precast.runtime.common.log import logger

_HERE = __name__.rpartition(".capture.")[0] + ".capture."


@contextlib.contextmanager
def missing_names_refused() -> Iterator[None]:
    """Raises CaptureRefused for an attribute or module of torch's that code of this folder asks for inside and that is not there. With
    PRECAST_STRICT the error is raised as it is.
    """
    try:
        yield
    except (AttributeError, ImportError) as error:
        name = _missing(error)
        if not name or strict():
            raise
        logger("runtime").info("torch %s has no %s", torch.__version__, name, exc_info=error)
        what = f"precast uses {name}, which torch {torch.__version__} does not have"
        raise CaptureRefused(what, hint="PRECAST_LOGS=runtime shows where, PRECAST_STRICT=1 raises it") from error


def _missing(error: AttributeError | ImportError) -> str:
    """The name that is missing, where it is torch's and code of this folder has asked for it; else empty."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames or not str(frames[-1].f_globals.get("__name__", "")).startswith(_HERE):
        return ""
    if isinstance(error, ImportError):
        name = error.name or ""
    else:
        owner = error.obj if isinstance(error.obj, (type, types.ModuleType)) else type(error.obj)
        home = owner.__name__ if isinstance(owner, types.ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
        name = f"{home}.{error.name}"
    return name if name.partition(".")[0] == "torch" else ""


__all__ = ["missing_names_refused"]
