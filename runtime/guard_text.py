"""Guards as readable lines: the path, the predicate, the value."""

from __future__ import annotations

from typing import Any

from precast.artifact_store.expressions import text
from precast.artifact_store.guards import Path, Predicate
from precast.artifact_store.plain_text import inline
from precast.runtime.paths import describe, describe_constant

_TAGGED = (Predicate.EQUALS, Predicate.BASE_EQUALS, Predicate.HAS_KEY, Predicate.LACKS_KEY)


def guard_columns(path: Path, predicate: str, constant: Any) -> tuple[str, str, str]:
    """One guard in words: (path, predicate, value)."""
    if predicate == Predicate.SAME_AS:
        value = describe(constant)
    elif predicate == Predicate.NOT_ALIASED:
        value = _apart(*(tuple(map(describe, constant[key])) for key in ("distinct", "mutated", "others")))
    elif predicate == Predicate.SAME_DEVICE:
        where = "one GPU" if constant["index"] is None else f"cuda:{constant['index']}"
        value = f"{', '.join(describe(place) for place in constant['paths'])} on {where}"
    elif predicate == Predicate.CLASSES:
        value = ", ".join(describe(place) for place, _, _ in constant["classes"])
    elif predicate == Predicate.SHAPE:
        value = text(constant["expr"], [describe(place) for place in constant["paths"]])
    elif predicate in _TAGGED:
        value = describe_constant(constant)
    else:
        value = "" if constant is None else inline(constant)
    return describe(path), str(predicate), value


def _apart(distinct: tuple[str, ...], mutated: tuple[str, ...], others: tuple[str, ...]) -> str:
    parts = [f"{', '.join(distinct)} are {len(distinct)} objects"] if distinct else []
    if mutated:
        read = f", nor with what is read: {', '.join(others)}" if others else ""
        parts.append(f"what is written shares no memory: {', '.join(mutated)}{read}")
    return "; ".join(parts)


__all__ = ["guard_columns"]
