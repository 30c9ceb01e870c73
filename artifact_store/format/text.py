"""Plain data as a line for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def counted(predicates: Iterable[str]) -> str:
    """How many of each kind, most frequent first: "12 tensor, 3 equals"."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(map(str, predicates)).most_common())


def inline(value: Any) -> str:
    """Plain data on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={inline(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(inline(item) for item in value)}]"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return str(value)


def human_days(seconds: float) -> str:
    return f"{seconds / 86400:.1f} days" if seconds >= 86400 else f"{seconds / 3600:.1f} hours"


def many(count: int, noun: str, plural: str = "") -> str:
    """How many there are: "1 problem", "2 problems"."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"
