"""What recording a guard table is, as the rows of predicates and the files of this room see it: the recorder, the places that it walks
through, and the exception by which a guard is left to Python.

It imports no other file of this room, so that the rows (`predicates.py`) can name these types and the recorder can name the rows.
"""

from __future__ import annotations

from typing import Any, Protocol

from precast.artifact_store.format.guards import Path
from precast.runtime.native.kinds import Slot


class Opaque(Exception):
    """The read depends on something that cannot be watched (a property, `__getattr__`, a C getter): Python evaluates it at each call."""


class Live:
    """A place that has another object at each call, and is checked by value. `number`: the index of its value in the table, for a dict that
    of its first value; `whole`: that of the dict itself.
    """

    __slots__ = ("number", "value", "whole")

    def __init__(self, number: int, value: Any, whole: int | None = None) -> None:
        self.number = number
        self.value = value
        self.whole = number if whole is None else whole


class Reads(Protocol):
    """Collects what an attribute look-up has read."""

    def slot(self, owner: Any, kind: Slot) -> None:
        """This pointer of an object stays what it is."""

    def key(self, namespace: dict[Any, Any], name: Any) -> None:
        """The dict keeps this value under the key, or keeps lacking the key."""

    def cls(self, cls: type) -> None:
        """The class and its bases keep their attributes: CPython's version tag of the class stays what it is."""


class Recorder(Reads, Protocol):
    """A guard table being recorded. Every method raises Opaque for what the table has no entry for."""

    table: Any
    """The native table; its methods append entries."""

    def whole(self, namespace: dict[Any, Any]) -> None:
        """The dict keeps its keys and values."""

    def once(self, kind: str, value: Any) -> None:
        """An entry made by the native table's method of this name, once for each object."""

    def tensor(self, value: Any) -> None:
        """A tensor that lives on keeps its class and metadata."""

    def own(self, value: Any) -> dict[str, Any]:
        """The object's own `__dict__`, which stays this dict."""

    def a_dict(self, value: Any) -> dict[Any, Any]:
        """The value itself, where it is a dict."""

    def attribute(self, value: Any, name: str) -> Any:
        """`getattr(value, name)`, or `attribute_lookup.ABSENT`; what the look-up depends on is recorded."""

    def lacks_on_class(self, cls: type, name: str) -> bool:
        """Whether no instance of `cls` without attributes of its own has an attribute `name`; what that depends on is recorded."""

    def place(self, path: Path) -> Any:
        """What the path leads to: a Live, or an object that lives on."""

    def compares_value_only_by_type(self, path: Path) -> bool:
        """Whether the guards on the number or string at `path` ask for its class alone."""

    def compares_tensor(self, path: Path) -> bool:
        """Whether entries compare the metadata and the own attributes of the call's tensor at `path`, as its TENSOR guard asks."""

    def own_attributes(self, place: Live) -> int:
        """Index of the first of the attributes that a tensor of the call has of its own: their names and order are recorded."""


__all__ = ["Live", "Opaque", "Reads", "Recorder"]
