"""Evaluating guards in Python, one at a time, with words for people. `compile_checker` (whole sets) is offered here too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.expressions import evaluate as evaluate_expression
from precast.artifact_store.expressions import leaves, show_leaf, text
from precast.artifact_store.guards import Guard, Predicate
from precast.runtime.checker import Checker, compile_checker
from precast.runtime.class_digest import failing_class
from precast.runtime.global_state import global_state
from precast.runtime.guard_rules import RULES, one_object, overlapping, strays
from precast.runtime.paths import PathError, describe, resolve, resolve_all

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
        if guard.path == (("state",),):
            return _STATE_RULES[guard.predicate](guard, local_values, cells)
        value = resolve(guard.path, local_values, cells)
        if guard.predicate is Predicate.SAME_AS:
            other = resolve(guard.constant, local_values, cells)
            one = f"the same object as {describe(guard.constant)}"
            return Verdict(value is other, one, "another; the artifact was made for one object")
        holds, expected, found = RULES[guard.predicate](value, guard.constant)
    except PathError as error:
        return Verdict(False, "it to exist", str(error))
    except Exception as error:  # noqa: BLE001 - a guard looks at the user's objects, whose __eq__, __len__ … may raise anything: then it does not hold
        return Verdict(False, _wanted(guard), f"{type(error).__name__}: {error}")
    return Verdict(holds, expected, found)


def _wanted(guard: Guard) -> str:
    """What the guard wants, in words where it has any: a record of another version may have none."""
    from precast.runtime.guard_text import guard_columns  # words are for misses

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


def _state(guard: Guard, local_values: Values, cells: Values | None) -> Verdict:
    now = global_state()
    wanted = guard.constant
    differ = sorted(k for k in {*now, *wanted} if now.get(k) != wanted.get(k))
    return Verdict(not differ, ", ".join(f"{k} {wanted.get(k)}" for k in differ), ", ".join(f"{k} {now.get(k)}" for k in differ))


def _not_aliased(guard: Guard, local_values: Values, cells: Values | None) -> Verdict:
    named = {key: list(zip(paths, resolve_all(paths, local_values, cells), strict=True)) for key, paths in guard.constant.items()}
    double = one_object(named["distinct"])
    if double is not None:
        first, second = map(describe, double)
        return Verdict(False, f"{first} and {second} to be two objects", "that they are one; the artifact was made for two")
    clash = overlapping(named["mutated"], named["others"])
    if clash is None:
        return Verdict(True)
    first, second = map(describe, clash)
    return Verdict(False, f"{first} and {second} to be different tensors that share no memory", "that they do")


def _same_device(guard: Guard, local_values: Values, cells: Values | None) -> Verdict:
    paths, index = guard.constant["paths"], guard.constant["index"]
    tensors = [resolve(path, local_values, cells) for path in paths]
    stray = strays(tensors, index)
    if stray < 0:
        return Verdict(True)
    wanted = f"on {tensors[0].device}, as {describe(paths[0])}" if index is None else f"on cuda:{index}, which the code names"
    return Verdict(False, f"{describe(paths[stray])} to be {wanted}", f"it on {tensors[stray].device}")


def _classes(guard: Guard, local_values: Values, cells: Values | None) -> Verdict:
    paths = [path for path, _, _ in guard.constant["classes"]]
    failing = failing_class(guard.constant, [resolve(path, local_values, cells) for path in paths])
    if failing < 0:
        return Verdict(True)
    return Verdict(False, f"the class {describe(paths[failing])} to define what it defined when it was traced", "other definitions")


def _shape(guard: Guard, local_values: Values, cells: Values | None) -> Verdict:
    expression, paths = guard.constant["expr"], guard.constant["paths"]
    objects = [resolve(path, local_values, cells) for path in paths]
    if evaluate_expression(expression, objects):
        return Verdict(True)
    names = [describe(path) for path in paths]
    read = dict.fromkeys(leaves(expression))
    found = ", ".join(f"{show_leaf(leaf, names)} = {evaluate_expression(leaf, objects)}" for leaf in read)
    return Verdict(False, text(expression, names), found)


_STATE_RULES: dict[Predicate, Callable[[Guard, Values, Values | None], Verdict]] = {
    Predicate.GLOBAL_STATE: _state,
    Predicate.NOT_ALIASED: _not_aliased,
    Predicate.SAME_DEVICE: _same_device,
    Predicate.CLASSES: _classes,
    Predicate.SHAPE: _shape,
}
