"""The text of reports in IPython and notebooks: that of `str()`, in place of a dataclass's `repr`."""

from __future__ import annotations

import html
from typing import Any


class Shown:
    """A base for classes with a `__str__` of their own; IPython calls these methods by name."""

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        first, *rest = str(self).split("\n")
        printer.text(first)
        for line in rest:
            printer.break_()
            printer.text(line)


__all__ = ["Shown"]
