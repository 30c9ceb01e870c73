"""Checking a guard set by interpretation: generating and compiling a function for it takes longer than the first few checks do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.artifact_store.format.packed_guards import GuardRow
from precast.runtime.guards.compiled import Checker, compile_checker
from precast.runtime.guards.predicates import OF_CLASS, ORDER, RELATIONS, VALUE_RULES
from precast.runtime.guards.rule import DIGESTS, Places, RelationRule, ValueRule
from precast.runtime.paths.fake_tensors import class_of
from precast.runtime.paths.paths import shared_steps, start, walk

INTERPRETED_CALLS = 3
"""How many checks are interpreted before the checker is compiled: a warm start with the native runtime needs two."""
_SHALLOW = 2
Rows = Callable[[], Iterable[GuardRow]]
Holds = Callable[[Any, Any], bool]
"""(object, constant) -> whether a guard holds."""
RelationHolds = Callable[[Path, Any, Places], bool]


def _without_words(rule: ValueRule) -> Holds:
    evaluate = rule.evaluate
    return rule.quick or (lambda value, constant: evaluate(value, constant)[0])


def _relation_without_words(rule: RelationRule) -> RelationHolds:
    evaluate = rule.evaluate
    return rule.quick or (lambda path, constant, places: evaluate(path, constant, places)[0])


_HOLDS: dict[str, Holds] = {predicate.value: _without_words(rule) for predicate, rule in VALUE_RULES.items()}
_RELATION_HOLDS: dict[str, RelationHolds] = {predicate.value: _relation_without_words(rule) for predicate, rule in RELATIONS.items()}
_ONCE_PER_CLASS = frozenset(predicate.value for predicate in OF_CLASS if VALUE_RULES[predicate].quick is None)
_DIGESTS = frozenset(predicate.value for predicate in VALUE_RULES if ORDER[predicate] >= DIGESTS)
"""Checked last: a digest takes longer than hundreds of comparisons."""


class LazyChecker:
    """`check(locals, cells) -> bool`, interpreted at first, compiled when it is called often. Never raises for what the objects do.

    `rows` gives the guards in canonical order, so that paths with a common beginning stand together; it is called at the first check, and
    what it raises reaches the caller. Guards on the arguments themselves come first: of several variants most differ there.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._shallow: Sequence[GuardRow] | None = None
        self._deep: Sequence[GuardRow] = ()
        self._calls = 0
        self._compiled: Checker | None = None

    def __call__(self, local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
        if self._compiled is not None:
            return self._compiled(local_values, cells)
        shallow = self._shallow
        if shallow is None:
            shallow = self._arrange()
        walked: dict[int, Any] = {}
        try:
            if not _interpret(shallow, local_values, cells, walked):
                return False
            if self._calls >= INTERPRETED_CALLS:
                rows = (*shallow, *self._deep)
                self._compiled = compile_checker([Guard(path, Predicate(name), constant) for path, name, constant in rows])
                return self._compiled(local_values, cells)
            self._calls += 1
            return _interpret(self._deep, local_values, cells, walked)
        except Exception:  # noqa: BLE001 - a guard looks at the user's objects, whose methods may raise anything: then it does not hold
            return False

    def _arrange(self) -> Sequence[GuardRow]:
        shallow: list[GuardRow] = []
        deep: list[GuardRow] = []
        late: list[GuardRow] = []
        for row in self._rows():
            predicate = row[1]
            if predicate in _DIGESTS:
                late.append(row)
            elif len(row[0]) <= _SHALLOW:
                shallow.append(row)
            else:
                (late if predicate in _RELATION_HOLDS else deep).append(row)
        self._deep = (*deep, *late)
        self._shallow = shallow = sorted(
            shallow, key=lambda row: len(row[0])
        )  # an object's type before its attributes, which may run properties
        return shallow


def _interpret(rows: Sequence[GuardRow], local_values: Mapping[str, Any], cells: Mapping[str, Any], walked: dict[int, Any]) -> bool:
    """Walk the paths in the order given; what a path has in common with the one before it is not walked again. `walked`: the objects that
    paths led to, by the id of the path, for relations: a path that a stored guard stands on is the same tuple in a relation's constant.
    """
    before: Sequence[Any] = ()
    objects: list[Any] = []
    places = Places(local_values, cells, walked)
    known: dict[tuple[int, str], type] = {}  # classes for which a guard holds: most modules of a model are of a few
    for path, predicate, constant in rows:
        relation = _RELATION_HOLDS.get(predicate)
        if relation is not None:
            if not relation(path, constant, places):
                return False
            continue
        if path != before:
            common = len(path) - 1
            if path[:-1] != before[:common]:  # mostly a sibling or a child of the path before
                common = shared_steps(path, before)
            del objects[common:]
            found = objects[-1] if objects else None
            for step in path[common:]:
                found = walk(found, step) if objects else start(step, local_values, cells)
                objects.append(found)
            before = path
            walked[id(path)] = objects[-1]
        value = objects[-1]
        if predicate in _ONCE_PER_CLASS:
            cls = class_of(value)
            if (id(cls), constant) not in known:
                if not _HOLDS[predicate](value, constant):
                    return False
                known[id(cls), constant] = cls
        elif not _HOLDS[predicate](value, constant):
            return False
    return True
