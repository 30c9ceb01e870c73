"""A display that shows nothing."""

from __future__ import annotations

from precast.building.progress import Tally


class Silent:
    def note(self, line: str) -> None: ...
    def warn(self, line: str) -> None: ...
    def show(self, tally: Tally) -> None: ...
