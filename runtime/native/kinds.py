"""Which check, and which pointer of an object: numbers that a guard table's methods take, those of `runtime/native/src/guard_table.h`."""

from __future__ import annotations

import enum
from typing import Any


class Slot(enum.IntEnum):
    """A pointer of an object that `Table.slot` compares: its class, its `__dict__`, what a cell holds, or a part of a function."""

    TYPE = 0
    DICT = 1
    CELL = 2
    CODE = 3
    DEFAULTS = 4
    KWDEFAULTS = 5


class Kind(enum.IntEnum):
    """What a table does with a value of the call. `Table.live` takes those from POINTER to LIST, and SAME; the others have methods."""

    LOCAL = 0
    ITEM = 1
    OWN = 2
    DICT = 3
    POINTER = 4
    EQUAL = 5
    TYPE = 6
    TUPLE = 7
    LIST = 8
    TENSOR = 9
    SAME = 10
    DISTINCT = 11
    SHAPE = 12
    APART = 13
    DISJOINT = 14


def verify(native: Any) -> None:
    """Raises ImportError where the native module numbers them in another way: it would read memory that is not there."""
    here = {f"{prefix}_{member.name}": member.value for prefix, kinds in (("SLOT", Slot), ("KIND", Kind)) for member in kinds}
    there = {name: value for name, value in vars(native).items() if name.startswith(("SLOT_", "KIND_"))}
    if here != there:
        raise ImportError(f"its kinds of checks are others than this version's: {sorted(here.items() ^ there.items())}")


__all__ = ["Kind", "Slot", "verify"]
