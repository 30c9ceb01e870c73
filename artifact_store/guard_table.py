"""The guards section of a manifest: a table in which what thousands of guards have in common stands once.

`paths` are pairs (number of the path that this one continues, or -1; number of its last step), `rows` are triples (path, predicate,
constant) of numbers into `paths`, `predicates` and `constants`. A ResNet-50 has 4,272 guards: as rows in full they are 0.8 MB and
145,000 objects when read, as a table 0.1 MB and 15,000, and a path that two guards share is one object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from precast.artifact_store.errors import DamagedRecord
from precast.artifact_store.guards import Path
from precast.artifact_store.serial import Data, pack, unpack

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
        flat += (number(path), predicates.number(predicate, predicate), constants.number(pack(constant, f"guards {path!r}"), constant))
    tables = {"steps": steps.values, "predicates": predicates.values, "constants": constants.values}
    return pack({**tables, "paths": paths, "rows": flat}, "guards")


def unpack_guards(data: bytes) -> tuple[GuardRow, ...]:
    """The rows; from a section that lists them in full, too, as earlier versions wrote it. Raises DamagedRecord."""
    found = unpack(data, "guards")
    if type(found) is tuple:
        if any(type(row) is not tuple or len(row) != 3 for row in found):
            raise DamagedRecord("guards: expected a list of (path, predicate, constant)")
        return found
    try:
        return _rows(found)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise DamagedRecord(f"guards: the table does not hold together ({type(error).__name__}: {error})") from error


def _rows(table: dict[str, Any]) -> tuple[GuardRow, ...]:
    steps, predicates, constants = table["steps"], table["predicates"], table["constants"]
    befores, lasts = _numbers(table["paths"][::2], -1), _numbers(table["paths"][1::2], 0)
    paths: list[Path] = []
    for before, last in zip(befores, lasts, strict=True):
        paths.append((steps[last],) if before < 0 else (*paths[before], steps[last]))
    flat = _numbers(table["rows"], 0)
    triples = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
    return tuple([(paths[path], predicates[predicate], constants[constant]) for path, predicate, constant in triples])


def _numbers(values: Any, least: int) -> tuple[int, ...]:
    """`values`, if they are whole numbers from `least` on."""
    if type(values) is not tuple or not {int}.issuperset(map(type, values)) or min(values, default=least) < least:
        raise ValueError(f"expected whole numbers from {least} on")
    return values
