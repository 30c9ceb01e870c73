"""Checking a guard set once or twice without compiling it: compiling a checker takes longer than a server's first call should."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from precast.artifact_store.format.guard_table import GuardRow
from precast.artifact_store.format.guards import Guard, Path, Predicate
from precast.runtime.guards.compiled import Checker, compile_checker
from precast.runtime.guards.evaluate import evaluate
from precast.runtime.guards.predicates import RULES, holder, tensor_fits
from precast.runtime.paths.fake_tensors import class_of
from precast.runtime.paths.paths import resolve_all, shared_steps, start, walk
from precast.runtime.paths.torch_state import global_state

INTERPRETED_CALLS = 3
"""How many checks are interpreted before the checker is compiled: a warm start with the native runtime needs two."""
_PLAIN = {"int": int, "bool": bool, "str": str}
_RELATIONS = ("same_as", "not_aliased", "same_device", "classes", "shape")
_SHALLOW = 2
Rows = Callable[[], Iterable[GuardRow]]


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
        met: dict[int, Any] = {}  # id of a path among the rows -> where it led
        try:
            if not _interpret(shallow, local_values, cells, met):
                return False
            if self._calls >= INTERPRETED_CALLS:
                rows = (*shallow, *self._deep)
                self._compiled = compile_checker([Guard(path, Predicate(name), constant) for path, name, constant in rows])
                return self._compiled(local_values, cells)
            self._calls += 1
            return _interpret(self._deep, local_values, cells, met)
        except Exception:  # noqa: BLE001 - a guard looks at the user's objects, whose methods may raise anything: then it does not hold
            return False

    def _arrange(self) -> Sequence[GuardRow]:
        shallow: list[GuardRow] = []
        deep: list[GuardRow] = []
        late: list[GuardRow] = []
        for row in self._rows():
            place = shallow if len(row[0]) <= _SHALLOW and row[1] != "code" else late if row[1] == "code" or row[1] in _RELATIONS else deep
            place.append(row)
        self._deep = (*deep, *late)
        self._shallow = shallow = sorted(shallow, key=lambda row: len(row[0]))  # an object's type before its attributes, which may be code
        return shallow


def _interpret(rows: Sequence[GuardRow], local_values: Mapping[str, Any], cells: Mapping[str, Any], met: dict[int, Any]) -> bool:
    """Walk the paths in the order given; what a path has in common with the one before it is not walked again."""
    before: Sequence[Any] = ()
    places: list[Any] = []
    stands: dict[tuple[int, str], type] = {}  # classes that were found under their names: most modules of a model are of a few
    for path, predicate, constant in rows:
        if predicate == "global_state":
            if global_state() != constant:
                return False
            continue
        if predicate == "not_aliased" and not constant["mutated"]:
            if not _are_distinct(constant["distinct"], met, local_values, cells):
                return False
            continue
        if predicate in _RELATIONS:
            if not evaluate(Guard(path, Predicate(predicate), constant), local_values, cells).holds:
                return False
            continue
        if path != before:
            common = len(path) - 1
            if path[:-1] != before[:common]:  # mostly a sibling or a child of the path before
                common = shared_steps(path, before)
            del places[common:]
            place = places[-1] if places else None
            for step in path[common:]:
                place = walk(place, step) if places else start(step, local_values, cells)
                places.append(place)
            before = path
            met[id(path)] = places[-1]
        place = places[-1]
        if predicate == "type":
            cls = class_of(place)
            if (id(cls), constant) not in stands:
                if not _holds(predicate, place, constant):
                    return False
                stands[id(cls), constant] = cls
        elif not _holds(predicate, place, constant):
            return False
    return True


def _are_distinct(paths: Sequence[Path], met: Mapping[int, Any], local_values: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
    """Whether they lead to different objects. A path that a stored guard stands on is the same tuple there, and was walked."""
    objects = [met[id(path)] for path in paths if id(path) in met]
    if len(objects) != len(paths):
        objects = resolve_all(paths, local_values, cells)
    return len(set(map(id, objects))) == len(paths)


def _holds(predicate: str, value: Any, constant: Any) -> bool:
    """The rules of `guard_rules` for the commonest guards, without the words."""
    if predicate == "empty":
        return len(value) == 0
    if predicate == "lacks_own":
        return holder(value, constant) is None
    if predicate == "equals":
        if constant[0] == "none":
            return value is None
        plain = _PLAIN.get(constant[0])
        if plain is not None:
            return type(value) is plain and bool(value == constant[1])
    if predicate == "tensor":
        return tensor_fits(value, constant)
    return RULES[predicate](value, constant)[0]  # type: ignore[index]  # a Predicate is its string
