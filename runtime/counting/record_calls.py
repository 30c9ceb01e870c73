"""Recording calls while a process serves: `precast.record(...)`, or PRECAST_RECORD. Each new kind of call is one line in a file.

A call that the native dispatcher serves is of a kind that came the slow way before, and is recorded already.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from precast.artifact_store.statistics.recorded_calls import RecordedCall, append, file_for, now
from precast.runtime.common.log import logger
from precast.runtime.counting.counted import Called
from precast.runtime.counting.signatures import to_data
from precast.runtime.counting.tallies import writes

ENVIRONMENT = "PRECAST_RECORD"
MOST, MOST_OF_ONE = 4096, 512
"""Kinds of calls that one process records: in all, and of one program."""


class Recorder:
    """Appends each new kind of call to a file. A failure is logged once, and ends the recording: the call goes on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: set[tuple[str, bool]] = set()
        self._of: Counter[str] = Counter()
        self._lock = threading.Lock()

    @property
    def file(self) -> Path:
        """Where this process appends; a forked child has a file of its own where a folder was named."""
        return file_for(self._path)

    def __call__(self, program: Called, args: tuple[Any, ...], kwargs: Mapping[str, Any], hit: bool) -> None:
        """Record a call of `program`, with the entry's prefix among its arguments. Never raises."""
        try:
            self._record(program, args, kwargs, hit)
        except Exception as error:  # noqa: BLE001 - a disk that is full, an object with an odd class: the call goes on
            logger("runtime").warning("recording calls into %s ends here: %s: %s", self._path, type(error).__name__, error)
            stop()

    def _record(self, program: Called, args: tuple[Any, ...], kwargs: Mapping[str, Any], hit: bool) -> None:
        entry = program.entry
        own = tuple(to_data(value) for value in args[len(entry.prefix) :])
        named = {name: to_data(value) for name, value in kwargs.items() if entry.keywords.get(name, _ABSENT) is not value}
        grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        call = RecordedCall(program.name, entry.name, program.key, hit, grad, inference, own, named, now())
        with self._lock:
            known = (call.identity, hit)
            if known in self._seen or len(self._seen) >= MOST or self._of[program.key] >= MOST_OF_ONE:
                return
            self._seen.add(known)
            self._of[program.key] += 1
            if self._of[program.key] == MOST_OF_ONE or len(self._seen) == MOST:
                logger("runtime").warning(
                    "%s: as many kinds of calls are recorded as one process records (%d of a program, %d in all); "
                    "sizes that vary want dynamic=True",
                    program.name,
                    MOST_OF_ONE,
                    MOST,
                )
            if not append(self.file, call):
                logger("runtime").warning("%s is full: nothing more is recorded in it", self.file)
                stop()


_ABSENT = object()


def record(path: str) -> None:
    """Record what the calls of compiled programs look like from here on, in a file, or a file of this process's own in a folder.

    Shapes, dtypes, strides, devices and scalars, and never a tensor's content. `recorded = "PATH"` in a build file makes `precast build`
    compile for them.
    """
    writes.record = Recorder(path)


def stop() -> None:
    """Record nothing more."""
    writes.record = None


__all__ = ["ENVIRONMENT", "Recorder", "record", "stop"]
