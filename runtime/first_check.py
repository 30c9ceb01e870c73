"""Checking a guard set once or twice without compiling it: compiling a checker takes longer than a server's first call should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precast.artifact_store.guards import Guard, Path, Predicate
from precast.runtime.checker import Checker, compile_checker
from precast.runtime.global_state import global_state
from precast.runtime.guard_eval import evaluate
from precast.runtime.guard_rules import RULES
from precast.runtime.paths import start, walk

INTERPRETED_CALLS = 3
"""How many checks are interpreted before the checker is compiled: a warm start with the native runtime needs two."""
_PLAIN = {"int": int, "bool": bool, "str": str}
_RELATIONS = (Predicate.SAME_AS, Predicate.NOT_ALIASED)


class LazyChecker:
    """`check(locals, cells) -> bool`, interpreted at first, compiled when it is called often. Never raises for what the objects do."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self._guards = tuple(sorted(guards, key=lambda guard: (len(guard.path) > 2, guard.predicate is Predicate.CODE)))
        self._calls = 0
        self._compiled: Checker | None = None

    def __call__(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
        if self._compiled is not None:
            return self._compiled(local_values, cells)
        self._calls += 1
        if self._calls > INTERPRETED_CALLS:
            self._compiled = compile_checker(self._guards)
            return self._compiled(local_values, cells)
        try:
            return _interpret(self._guards, local_values, cells)
        except Exception:  # noqa: BLE001 - a guard looks at the user's objects, whose methods may raise anything: then it does not hold
            return False


def _interpret(guards: Sequence[Guard], local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
    places: dict[Path, Any] = {}

    def place(path: Path) -> Any:
        try:
            return places[path]
        except KeyError:
            found = start(path[0], local_values, cells) if len(path) == 1 else walk(place(path[:-1]), path[-1])
            places[path] = found
            return found

    for guard in guards:
        if guard.predicate is Predicate.GLOBAL_STATE:
            if global_state() != guard.constant:
                return False
        elif guard.predicate in _RELATIONS or guard.path == (("state",),):
            if not evaluate(guard, local_values, cells).holds:
                return False
        elif not _holds(guard.predicate, place(guard.path), guard.constant):
            return False
    return True


def _holds(predicate: Predicate, value: Any, constant: Any) -> bool:
    """The rules of `guard_rules` for the commonest guards, without the words."""
    if predicate is Predicate.EMPTY:
        return len(value) == 0
    if predicate is Predicate.LACKS_OWN:
        return constant not in value.__dict__
    if predicate is Predicate.EQUALS:
        if constant[0] == "none":
            return value is None
        plain = _PLAIN.get(constant[0])
        if plain is not None:
            return type(value) is plain and bool(value == constant[1])
    return RULES[predicate](value, constant)[0]
