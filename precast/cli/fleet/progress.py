"""How far a transfer is, on stderr: a bar with bytes, rate and time left on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from precast.cli.output import Output, colour
from precast.report.units import human_size

LINE_EVERY = 5.0
"""Seconds between two lines in a log."""


@contextmanager
def transfer_progress(out: Output, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """`told(bytes)` of a transfer of `total` bytes; safe to call from several threads."""
    if not sys.stderr.isatty():
        yield _Lines(out, what, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True, color_system="auto" if colour() else None)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what.replace("[", "\\["), total=total)
        yield lambda size: bar.advance(task, size)


class _Lines:
    def __init__(self, out: Output, what: str, total: int) -> None:
        self._out, self._what, self._total = out, what, total
        self._lock = threading.Lock()
        self._done, self._began = 0, time.monotonic()
        self._last = self._began

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done += size
            now = time.monotonic()
            if now - self._last < LINE_EVERY or self._done >= self._total:
                return
            self._last = now
            self._out.note(line(self._what, self._done, self._total, now - self._began))


def line(what: str, done: int, total: int, seconds: float) -> str:
    """The state as one line."""
    rate = done / seconds if seconds > 0 else 0.0
    left = f", {(total - done) / rate:.0f} s left" if rate > 0 else ""
    share = 100 * done // total if total else 100
    return f"{what}: {human_size(done)} of {human_size(total)} ({share} %), {human_size(int(rate))}/s{left}"
