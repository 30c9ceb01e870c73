"""The user's lines that steps come from, by file, with the lines around them where the file is at hand and still says the same."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from precast.lowering.costs.records import StepRecord

AROUND = 2
_SOURCE = re.compile(r"(?P<file>.*?):(?P<line>\d+) in (?P<function>[^:]+?)(?:: (?P<code>.*))?", re.S)


@dataclass(frozen=True)
class Row:
    """A line of a file. `source`: its position among the graph's sources, None for one that is there for context."""

    number: int
    text: str
    source: int | None


@dataclass(frozen=True)
class SourceFile:
    """`rows` in order; between two whose numbers are apart, something is left out."""

    name: str
    rows: tuple[Row, ...]


def sources_of(steps: Sequence[StepRecord]) -> list[str]:
    """The lines that any step comes from, each once, as the records have them."""
    return list(dict.fromkeys(source for step in steps for source in step.sources))


def files_of(sources: Sequence[str]) -> list[SourceFile]:
    """In the order in which the program comes to them."""
    found: dict[str, dict[int, Row]] = {}
    for place, source in enumerate(sources):
        parts = _SOURCE.fullmatch(source)
        file, number, code = (parts["file"], int(parts["line"]), parts["code"] or "") if parts else (source, 0, "")
        rows = found.setdefault(file, {})
        lines = _text(file)
        if 0 < number <= len(lines) and lines[number - 1].strip() == code:
            for near in range(max(1, number - AROUND), min(len(lines), number + AROUND) + 1):
                rows.setdefault(near, Row(near, lines[near - 1], None))
            rows[number] = Row(number, lines[number - 1], place)
        else:
            rows[number] = Row(number, code, place)
    return [SourceFile(file, tuple(rows[number] for number in sorted(rows))) for file, rows in found.items()]


@cache
def _text(file: str) -> tuple[str, ...]:
    """The file's lines, where it lies under an entry of `sys.path`; records name files from there on."""
    for folder in ("", *sys.path):
        path = Path(folder or ".", file)
        if path.suffix == ".py" and path.is_file():
            try:
                return tuple(path.read_text("utf-8").splitlines())
            except (OSError, UnicodeDecodeError):
                return ()
    return ()


__all__ = ["Row", "SourceFile", "files_of", "sources_of"]
