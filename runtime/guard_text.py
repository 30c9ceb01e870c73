"""Guards as lines for people: where, what must hold, with what value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from precast.artifact_store.expressions import text
from precast.artifact_store.guards import Path, Predicate
from precast.runtime.paths import describe, describe_constant

_TAGGED = (Predicate.EQUALS, Predicate.BASE_EQUALS, Predicate.HAS_KEY, Predicate.LACKS_KEY)


def guard_columns(path: Path, predicate: str, constant: Any) -> tuple[str, str, str]:
    """One guard in words: (path, predicate, value)."""
    if predicate == Predicate.SAME_AS:
        value = describe(constant)
    elif predicate == Predicate.CLASSES:
        value = ", ".join(describe(place) for place, _, _ in constant["classes"])
    elif predicate == Predicate.SHAPE:
        value = text(constant["expr"], [describe(place) for place in constant["paths"]])
    elif predicate in _TAGGED:
        value = describe_constant(constant)
    else:
        value = "" if constant is None else inline(constant)
    return describe(path), str(predicate), value


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


__all__ = ["counted", "guard_columns", "inline"]
