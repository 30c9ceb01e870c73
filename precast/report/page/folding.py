"""Layers of one form in a row, so that a graph of twelve equal layers is drawn as one layer and a number."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LONGEST = 512
"""Steps of a layer; more than that is no layer any more."""
_LEAST = 3
"""Times that a single step has to follow itself before that is a layer."""


@dataclass(frozen=True)
class Repeat:
    """`count` layers of `period` steps each, one after the other, from step `first` on."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.period * self.count


def repeats(forms: Sequence[Hashable]) -> list[Repeat]:
    """Those that cover most steps first, then what is left between them; in order of the steps, and never over one another."""
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(form, len(numbers)) for form in forms], dtype=np.int64)
    return sorted(_within(codes, 0, len(codes)), key=lambda repeat: repeat.first)


def _within(codes: np.ndarray, begin: int, end: int) -> Iterator[Repeat]:
    spans = [(begin, end)]
    while spans:
        begin, end = spans.pop()
        best = _longest(codes[begin:end])
        if best is not None:
            found = Repeat(begin + best.first, best.period, best.count)
            yield found
            spans += [(begin, found.first), (found.end, end)]


def _longest(codes: np.ndarray) -> Repeat | None:
    """The repeat that covers most; of those, the one of the shortest layers."""
    best: Repeat | None = None
    for period in range(1, min(len(codes) // 2, LONGEST) + 1):
        first, length = _run(codes[period:] == codes[:-period])
        count = length // period + 1
        if count < (_LEAST if period == 1 else 2):
            continue
        if best is None or count * period > best.count * best.period:
            best = Repeat(first, period, count)
    return best


def _run(same: np.ndarray) -> tuple[int, int]:
    """Begin and length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(begins[longest]), int(lengths[longest])


__all__ = ["Repeat", "repeats"]
