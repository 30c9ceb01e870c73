"""The live display of `precast build` by several workers: a bar and a line for each worker on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from precast.building.progress import Display, Tally, span
from precast.cli.output import Output, colour

ROWS = 16
"""Workers that are shown; of more, those that have been at one signature for the longest time."""
DRAW_SECONDS = 0.1
LINE_SECONDS = 30.0
"""Without a terminal: seconds without an event after which the state is said all the same."""


class Lines:
    """Plain lines, for a log: events as they come, and a sign of life in between."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._said = time.monotonic()

    def note(self, line: str) -> None:
        self._said = time.monotonic()
        self._out.note(line)

    warn = note

    def show(self, tally: Tally) -> None:
        if time.monotonic() - self._said >= LINE_SECONDS:
            oldest = min(tally.doing.values(), key=lambda doing: doing.since, default=None)
            at = f"; for {span(tally.clock() - oldest.since)}: {oldest.what}" if oldest is not None else ""
            self.note(f"{tally}{at}")


class Live:
    """Drawn in place by whoever calls `show`: no thread, so that this process may fork."""

    def __init__(self, live: Any) -> None:
        self._live = live
        self._drawn = 0.0

    def note(self, line: str) -> None:
        """The table says it."""

    def warn(self, line: str) -> None:
        self._live.console.print(line, highlight=False, markup=False)

    def show(self, tally: Tally) -> None:
        if time.monotonic() - self._drawn >= DRAW_SECONDS:
            self._drawn = time.monotonic()
            self._live.update(drawing(tally), refresh=True)


def drawing(tally: Tally) -> Any:
    """The bar with the figures, and below it what each worker does, for how long."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 1))
    head.add_row(ProgressBar(total=max(1, tally.total), completed=tally.done, width=24), Text(f"{tally}; {span(tally.seconds)} so far"))
    rows = Table.grid(padding=(0, 1))
    by_age = sorted(tally.doing.items(), key=lambda item: item[1].since)
    for worker, doing in by_age[:ROWS]:
        rows.add_row(Text(worker), Text(f"{tally.clock() - doing.since:.0f} s", justify="right"), Text(doing.what, overflow="ellipsis"))
    if len(by_age) > ROWS:
        rows.add_row(Text(f"and {len(by_age) - ROWS} more"), Text(""), Text(""))
    return Group(head, rows)


@contextmanager
def build_display(out: Output) -> Iterator[Display]:
    """The display for this stderr; on a terminal it is wiped away at the end, for the report to follow."""
    if not sys.stderr.isatty():
        yield Lines(out)
        return
    import rich.live
    from rich.console import Console

    console = Console(stderr=True, color_system="auto" if colour() else None)
    with rich.live.Live(console=console, auto_refresh=False, transient=True) as live:
        yield Live(live)
