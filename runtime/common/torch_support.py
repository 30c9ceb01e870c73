"""Whether precast works with the torch at hand, and what of this torch is not as precast expects it: each is said once in a process.

Where nothing works, programs run as they are written. Where one fact does not hold, what needs it does without (`differs`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from precast.runtime.common.eval_frame import MISSING
from precast.runtime.common.locks import Lock
from precast.runtime.common.log import logger, warn
from precast.runtime.common.supported_torch import why_unknown, why_unsupported
from precast.runtime.common.torch_names import missing_names

EAGERLY = "programs run as they are written (eagerly)"


@dataclass(frozen=True)
class Difference:
    """A fact about torch that does not hold. `fact`: its name; `detail`: what was found; `instead`: what is done without it."""

    fact: str
    detail: str
    instead: str

    def __str__(self) -> str:
        return f"torch {torch.__version__} differs from what precast relies on: {self.fact} ({self.detail}); {self.instead}"


class FactFails(Exception):
    """Facts do not hold without which what is compiled could be wrong."""


@functools.cache
def unsupported() -> str:
    """Why nothing is loaded or compiled with this torch, as a sentence; empty where precast works with it. The first one to ask has a torch
    that nobody has tested precast with warned of.
    """
    reason = why_unsupported(torch.__version__)
    if not reason and (lacking := MISSING or ", ".join(missing_names())):
        reason = f"torch {torch.__version__} lacks what precast calls of it: {lacking}"
    if not reason and (unknown := why_unknown(torch.__version__)):
        warn(f"precast: {unknown}")
    return reason


class _State:
    """What has been found out in this process. `broken`: why nothing can be compiled; what is stored is served all the same."""

    broken = ""
    told = False


_state = _State()
_different: dict[str, Difference] = {}
_lock = Lock()


def broken() -> str:
    """Why nothing can be compiled in this process; empty as long as nothing is known to be in the way."""
    return _state.broken


def note_broken(error: Exception) -> str:
    """Notes that the compiler cannot be imported, mostly since this torch lacks a name that an adapter imports; returns the sentence."""
    reason = str(error)
    if not isinstance(error, FactFails):
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


def differs(difference: Difference) -> None:
    """A fact does not hold, and precast goes on without it: one warning in a process for each fact."""
    with _lock:
        first = difference.fact not in _different
        _different.setdefault(difference.fact, difference)
    if first:
        warn(f"precast: {difference}. `precast doctor` says more")
        logger("runtime").info("%s", difference)


def differences() -> tuple[Difference, ...]:
    """What this process goes on without."""
    with _lock:
        return tuple(_different.values())


__all__ = ["EAGERLY", "Difference", "FactFails", "broken", "differences", "differs", "note_broken", "tell", "unsupported"]
