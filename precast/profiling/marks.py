"""The marks that compiled graphs leave while a profiler asks: when each step of each run began."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from precast.runtime.executable.library import Library, opened

CAPACITY = 1 << 16
"""Marks of one graph between two readings; what comes after them is not recorded, and `Lost` says so."""
ENTERED = -1


class Lost(RuntimeError):
    """More marks than there is room for."""


class _Marks(ctypes.Structure):
    """`struct Marks` of codegen/host/templates.py."""

    _fields_ = (
        ("steps", ctypes.POINTER(ctypes.c_int64)),
        ("times", ctypes.POINTER(ctypes.c_int64)),
        ("capacity", ctypes.c_int64),
        ("used", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Run:
    """One run of a graph. `entry`: seconds before its first step (inputs are looked at, memory is found); `steps`: seconds of each step."""

    entry: float
    steps: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return self.entry + sum(self.steps)


class _Book:
    """The marks of one library."""

    def __init__(self, library: Library, on_device: bool, capacity: int) -> None:
        self.library = library
        self.on_device = on_device
        self.steps = (ctypes.c_int64 * capacity)()
        self.times = (ctypes.c_int64 * capacity)()
        self.events: list[Any] = []
        self.marks = _Marks(self.steps, self.times, capacity, 0)

    def start(self, events: int) -> None:
        if self.on_device and len(self.events) < events:
            for place in range(len(self.events), events):
                event = torch.Event(torch.accelerator.current_accelerator(), enable_timing=True)
                event.record()  # torch makes the device's own event only then
                self.times[place] = int(event.event_id)
                self.events.append(event)
            self.marks.capacity = events
        self.marks.used = 0
        self.library.profile(ctypes.addressof(self.marks))

    def runs(self) -> list[Run]:
        """Those since the start. Raises Lost."""
        used = int(self.marks.used)
        if used > self.marks.capacity:
            raise Lost(f"a graph left {used} marks, and there is room for {self.marks.capacity}: profile fewer calls at a time")
        numbers = self.steps[:used]
        runs: list[Run] = []
        begin = 0
        for place in range(1, used + 1):
            if place == used or numbers[place] == ENTERED:
                if numbers[begin] == ENTERED and place - begin > 1:
                    spans = [self._between(i, i + 1) for i in range(begin, place - 1)]
                    runs.append(Run(spans[0], tuple(spans[1:])))
                begin = place
        return runs

    def _between(self, first: int, second: int) -> float:
        if self.on_device:
            return float(self.events[first].elapsed_time(self.events[second])) / 1e3
        return (self.times[second] - self.times[first]) / 1e9


class Recorder:
    """Records the runs of the libraries that are opened when a recording begins; those that `on_device` names by their digests compute on
    a device, where marks are events. One recording at a time. Libraries that leave no marks are left out, but for those in `needed`.
    """

    def __init__(
        self, on_device: frozenset[str] = frozenset(), needed: frozenset[str] = frozenset(), capacity: int = CAPACITY, events: int = 4096
    ) -> None:
        self.on_device = on_device
        self.needed = needed
        self.capacity = capacity
        self.events = events
        self._books: dict[str, _Book] = {}

    @contextmanager
    def recording(self) -> Iterator[dict[str, list[Run]]]:
        """Yields a dict that holds, when the block has ended, the runs of each library that ran, by its digest, in order.

        Raises Lost, and LoadError where a needed library leaves no marks.
        """
        found: dict[str, list[Run]] = {}
        books: Mapping[str, _Book] = {
            digest: self._book(digest, library) for digest, library in opened().items() if library.leaves_marks or digest in self.needed
        }
        for book in books.values():
            book.start(self.events)
        try:
            yield found
        finally:
            if any(book.on_device for book in books.values()):
                torch.accelerator.synchronize()
            for book in books.values():
                book.library.profile(0)
        found.update({digest: own for digest, book in books.items() if (own := book.runs())})

    def _book(self, digest: str, library: Library) -> _Book:
        if digest not in self._books:
            on_device = digest in self.on_device
            self._books[digest] = _Book(library, on_device, self.events if on_device else self.capacity)
        return self._books[digest]


__all__ = ["Lost", "Recorder", "Run"]
