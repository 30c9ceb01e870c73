"""Guards as readable lines: the path, the predicate, the value."""

from __future__ import annotations

from typing import Any

from precast.artifact_store.format.guards import Path
from precast.artifact_store.format.text import inline
from precast.runtime.guards.predicates import RULES
from precast.runtime.paths.paths import describe


def guard_columns(path: Path, predicate: str, constant: Any) -> tuple[str, str, str]:
    """One guard in words: (path, predicate, value)."""
    rule = RULES.get(predicate)  # type: ignore[call-overload]  # a Predicate is its string
    if rule is not None and rule.words is not None:
        value = rule.words(constant)
    else:
        value = "" if constant is None else inline(constant)
    return describe(path), str(predicate), value


__all__ = ["guard_columns"]
