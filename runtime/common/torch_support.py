"""Whether precast works with the torch at hand: where it does not, programs run as they are written, and that is said once."""

from __future__ import annotations

import functools

import torch

from precast.runtime.common.eval_frame import MISSING
from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger, warn
from precast.runtime.common.supported_torch import why_unsupported

EAGERLY = "programs run as they are written (eagerly)"


@functools.cache
def unsupported() -> str:
    """Why nothing is loaded or compiled with this torch, as a sentence; empty where precast works with it."""
    return why_unsupported(torch.__version__) or (MISSING and f"torch {torch.__version__} lacks what precast calls of it: {MISSING}")


class _State:
    """What has been found out in this process. `broken`: why nothing can be compiled; what is stored is served all the same."""

    broken = ""
    told = False


_state = _State()
_lock = Lock()


def broken() -> str:
    """Why nothing can be compiled in this process; empty as long as nothing is known to be in the way."""
    return _state.broken


def note_broken(error: Exception) -> str:
    """Notes that the compiler cannot be imported, mostly since this torch lacks a name that an adapter imports; returns the sentence."""
    reason = f"the compiler cannot be imported with torch {torch.__version__}: {type(error).__name__}: {error}"
    logger("runtime").info("%s", reason, exc_info=error)
    _state.broken = reason
    return reason


def tell(reason: str) -> None:
    """One warning in a process."""
    with _lock:
        first, _state.told = not _state.told, True
    if first:
        warn(f"precast: {reason}; {EAGERLY}. `precast doctor` says more")
    logger("runtime").info("%s; %s", reason, EAGERLY)


__all__ = ["EAGERLY", "broken", "note_broken", "tell", "unsupported"]
