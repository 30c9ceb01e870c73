"""Evaluating guards in Python, one at a time, with words for people. `compile_checker` (whole sets) is offered here too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.format.guards import Guard, Predicate
from precast.runtime.guards.compiled import Checker, compile_checker
from precast.runtime.guards.predicates import RULES
from precast.runtime.guards.rule import Places, RelationRule
from precast.runtime.paths.paths import PathError, describe, resolve

__all__ = ["Checker", "Verdict", "compile_checker", "evaluate", "failure", "first_failing", "first_failure"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """Whether a guard holds; if not, what it expected and what it found, in words."""

    holds: bool
    expected: str = ""
    found: str = ""


def evaluate(guard: Guard, local_values: Values, cells: Values | None = None) -> Verdict:
    """Check one guard. Never raises: a path that leads nowhere does not hold."""
    try:
        rule = RULES[guard.predicate]
        if isinstance(rule, RelationRule):
            return Verdict(*rule.evaluate(guard.path, guard.constant, Places(local_values, cells)))
        return Verdict(*rule.evaluate(resolve(guard.path, local_values, cells), guard.constant))
    except PathError as error:
        return Verdict(False, "it to exist", str(error))
    except Exception as error:  # noqa: BLE001 - a guard looks at the user's objects, whose __eq__, __len__ … may raise anything: then it does not hold
        return Verdict(False, _wanted(guard), f"{type(error).__name__}: {error}")


def _wanted(guard: Guard) -> str:
    """What the guard wants, in words where it has any: a record of another version may have none."""
    from precast.runtime.guards.text import guard_columns  # words are for misses

    try:
        _, predicate, value = guard_columns(guard.path, guard.predicate, guard.constant)
    except (ValueError, KeyError, TypeError, IndexError):
        return f"{guard.predicate.value} {guard.constant!r}"
    return value if guard.predicate is Predicate.SHAPE else f"{predicate} {value}"


def failure(guard: Guard, local_values: Values, cells: Values | None = None) -> str:
    """A sentence when the guard does not hold: what, expected, found; empty when it holds."""
    verdict = evaluate(guard, local_values, cells)
    if verdict.holds:
        return ""
    if guard.path == (("state",),):
        return f"expected {verdict.expected}, found {verdict.found}"
    return f"{describe(guard.path)}: expected {verdict.expected}, found {verdict.found}"


def first_failure(guards: Sequence[Guard], local_values: Values, cells: Values | None = None) -> str:
    """The first guard that does not hold, as a sentence; empty when all hold. Objects come before what is read of them: it may be code."""
    for guard in sorted(guards, key=lambda guard: len(guard.path)):
        text = failure(guard, local_values, cells)
        if text:
            return text
    return ""


def first_failing(guards: Sequence[Guard], local_values: Values, cells: Values | None = None) -> int:
    """Index of the first guard that does not hold, in the order given; -1 when all hold."""
    return next((i for i, guard in enumerate(guards) if not evaluate(guard, local_values, cells).holds), -1)
