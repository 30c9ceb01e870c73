"""The guards section of a manifest: a table in which what thousands of guards have in common stands once.

`paths` are pairs (number of the path that this one continues, or -1; number of its last step), `rows` are triples (path, predicate,
constant) of numbers into `paths`, `predicates` and `constants`. Where a constant is made of paths it stands as their numbers: that of the
first, then how far each is from the one before it. A ResNet-50 has 4,272 guards: as rows in full they are 0.8 MB and
145,000 objects when read, as a table 0.1 MB and 15,000, and a path that two guards share is one object.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import msgpack

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.guards import Path, Predicate, canonical, hash_of_texts
from precast.artifact_store.format.msgpack import Data, pack, unpack

GuardRow = tuple[Path, str, Data]


class _Numbers:
    """Distinct values in the order met; `key` tells them apart (equality does not: 1 == True)."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._known: dict[Any, int] = {}

    def number(self, key: Any, value: Any) -> int:
        found = self._known.setdefault(key, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


def pack_guards(rows: Iterable[GuardRow]) -> bytes:
    """The section's bytes, with the rows in the order given. Raises TypeError naming the place of what is not plain data."""
    steps, predicates, constants = _Numbers(), _Numbers(), _Numbers()
    known: dict[str, int] = {}
    paths: list[int] = []
    flat: list[int] = []

    def number(path: Path) -> int:
        key = repr(path)
        found = known.get(key)
        if found is None:
            before = number(path[:-1]) if len(path) > 1 else -1
            found = known[key] = len(known)
            paths.extend((before, steps.number(repr(path[-1]), path[-1])))
        return found

    for path, predicate, constant in rows:
        if not path:
            raise TypeError("guards: a guard's path is empty")
        first = number(path)
        constant = _over_paths(predicate, constant, lambda held: _steps_between(map(number, held)))
        flat += (first, predicates.number(predicate, predicate), constants.number(pack(constant, f"guards {path!r}"), constant))
    tables = {"steps": steps.values, "predicates": predicates.values, "constants": constants.values}
    return pack({**tables, "paths": paths, "rows": flat}, "guards")


def _over_paths(predicate: str, constant: Any, change: Callable[[Any], Any]) -> Any:
    """The constant with its sequences of paths changed, where the predicate has any."""
    if predicate == "same_as":
        return change((constant,))
    if predicate == "not_aliased":
        return {key: change(held) for key, held in constant.items()}
    return constant


def _steps_between(numbers: Iterable[int]) -> tuple[int, ...]:
    found = tuple(numbers)
    return tuple(here - before for before, here in zip((0, *found), found, strict=False))


def unpack_guards(data: bytes) -> tuple[GuardRow, ...]:
    """The rows; from a section that lists them in full, too, as earlier versions wrote it. Raises DamagedRecord."""
    found = unpack(data, "guards")
    if type(found) is tuple:
        if any(type(row) is not tuple or len(row) != 3 for row in found):
            raise DamagedRecord("guards: expected a list of (path, predicate, constant)")
        if unknown := {str(row[1]) for row in found} - _PREDICATES:
            raise DamagedRecord(f"guards: unknown predicate {', '.join(map(repr, sorted(unknown)))}")
        return found
    try:
        return _rows(found)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedRecord(f"guards: the table does not hold together ({type(error).__name__}: {error})") from error


def count_guards(data: bytes) -> int:
    """How many rows the section has; what is in them is passed over and not made. Raises DamagedRecord."""
    reader = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    reader.feed(data)
    try:
        if data[:1] and 0x80 <= data[0] <= 0x8F:  # a map of five tables
            for _ in range(reader.read_map_header()):
                if reader.unpack() == "rows":
                    return int(reader.read_array_header()) // 3
                reader.skip()
            raise DamagedRecord("guards: the table has no rows")
        return int(reader.read_array_header())
    except (ValueError, msgpack.UnpackException) as error:
        raise DamagedRecord(f"guards: not valid msgpack data ({type(error).__name__}: {error})") from error


def hash_of_packed(data: bytes, rows: tuple[GuardRow, ...]) -> str:
    """The guard hash (`guards.guard_hash`) of the section, whose rows these are.

    What the table has once is made text once, so that it takes a seventh of the time that guards as objects take: all of a store are hashed
    whenever it is verified.
    """
    found = unpack(data, "guards")
    if type(found) is tuple:
        return hash_of_texts((repr(path), predicate, canonical(constant)) for path, predicate, constant in rows)
    steps = [repr(step) for step in found["steps"]]
    before: list[str] = []  # the texts of paths without their ends
    for back, last in zip(found["paths"][::2], found["paths"][1::2], strict=True):
        before.append(f"({steps[last]}" if back < 0 else f"{before[back]}, {steps[last]}")
    ends = [",)" if back < 0 else ")" for back in found["paths"][::2]]
    paths = [text + end for text, end in zip(before, ends, strict=True)]
    constants = [_text_of(constant) for constant in found["constants"]]
    numbers = found["rows"]
    return hash_of_texts(
        (paths[path], row[1], constants[constant] if row[1] not in _OVER_PATHS else canonical(row[2]))
        for row, path, constant in zip(rows, numbers[::3], numbers[2::3], strict=True)
    )


_texts: dict[str, str] = {}
_MOST_TEXTS = 20_000


def _text_of(constant: Data) -> str:
    """`canonical`, which most constants of a store's manifests share; plain data of one `repr` is the same data."""
    key = repr(constant)
    found = _texts.get(key)
    if found is None:
        if len(_texts) >= _MOST_TEXTS:
            _texts.clear()
        found = _texts[key] = canonical(constant)
    return found


def _rows(table: dict[str, Any]) -> tuple[GuardRow, ...]:
    steps, predicates, constants = table["steps"], table["predicates"], table["constants"]
    if unknown := {str(name) for name in predicates} - _PREDICATES:
        raise ValueError(f"unknown predicate {', '.join(map(repr, sorted(unknown)))}")
    befores, lasts = _numbers(table["paths"][::2], -1), _numbers(table["paths"][1::2], 0)
    paths: list[Path] = []
    for before, last in zip(befores, lasts, strict=True):
        paths.append((steps[last],) if before < 0 else (*paths[before], steps[last]))
    flat = _numbers(table["rows"], 0)
    triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    rows = [(paths[path], predicates[predicate], constants[constant]) for path, predicate, constant in triples]
    return tuple([row if row[1] not in _OVER_PATHS else _with_paths(row, paths) for row in rows])


_PREDICATES = frozenset(map(str, Predicate))
_OVER_PATHS = ("same_as", "not_aliased")


def _with_paths(row: GuardRow, paths: list[Path]) -> GuardRow:
    """The row with the paths in the place of their numbers; unchanged where earlier versions wrote the paths themselves."""
    path, predicate, constant = row
    if type(constant) is not (tuple if predicate == "same_as" else dict):
        raise ValueError(f"a guard {predicate} is over paths")

    def found(steps: Any) -> Any:
        if type(steps) is not tuple or not {int}.issuperset(map(type, steps)):
            return steps
        numbers = tuple(itertools.accumulate(steps))
        return tuple([paths[number] for number in _numbers(numbers, 0)])

    if predicate != "same_as":
        return path, predicate, _over_paths(predicate, constant, found)
    one = found(constant)
    return path, predicate, one if one is constant else one[0]


def _numbers(values: Any, least: int) -> tuple[int, ...]:
    """`values`, if they are whole numbers from `least` on."""
    if type(values) is not tuple or not {int}.issuperset(map(type, values)) or min(values, default=least) < least:
        raise ValueError(f"expected whole numbers from {least} on")
    return values
