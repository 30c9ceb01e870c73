"""The form of a predicate's row, one field for each engine that checks guards, and what the rows see of the native table.

`predicates.py` holds the table of rows and says which engine runs when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Protocol

from precast.artifact_store.format.guards import Path, Predicate
from precast.runtime.native.kinds import Slot
from precast.runtime.paths.paths import resolve, resolve_all


class Opaque(Exception):
    """The read depends on something that cannot be watched (a property, `__getattr__`, a C getter): Python evaluates it at each call."""


class Live:
    """A place that holds another object at each call, such as an argument, and is checked by value. The native table numbers the values of
    a call; `number` is this one's, or for a dict that of the first value in it; `whole` is the number of the dict itself.
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
        """Calls the native table's method named `kind` with the object, unless that was done for it before."""

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


Constant = Any
"""What a guard compares with: plain data, `artifact_store/format/guards.py` says for each predicate which."""
Finding = tuple[bool, str, str]
"""Whether a guard holds; what it expected and what it found, in words, which a guard that holds may leave empty."""
BEFORE_OTHERS, USUAL, DIGESTS, SEVERAL_OBJECTS = 2, 5, 8, 9
"""Places in the order of checks: telling and cheap, the rest, digests of code, what compares many objects."""


class Covered(Flag):
    """Kinds of places (a scalar, a tensor, a container) whose own entry in the native table already decides a guard, so that the guard
    adds none.
    """

    NOTHING = 0
    SCALAR = auto()
    """A number or string of the call: an entry compares its type and, unless guards ask for no more than the type, its value."""
    SEQUENCE = auto()
    """A tuple or list of the call: an entry compares its class and length."""
    MAPPING = auto()
    """A dict of the call with strings for keys: an entry compares its class, and the keys in their order."""
    TENSOR = auto()
    """A tensor of the call that a TENSOR guard is on: an entry compares class, metadata, and which attributes it has of its own."""
    CLASS_DICT = auto()
    """The `__dict__` of a class: an entry compares the version of the class."""


class Writer(Protocol):
    """The function that `compiled.py` generates, while its lines are written."""

    def place(self, path: Path) -> str:
        """The variable that holds the object at `path`; the lines that walk there are written when it is first asked for."""

    def name(self, value: Any) -> str:
        """A name under which the function finds this object."""

    def assign(self, expression: str) -> str:
        """The variable that holds the value of an expression from here on."""

    def judge(self, predicate: Predicate, place: str, constant: Constant) -> str:
        """The condition under which the predicate's own `evaluate` says that a guard does not hold."""


class Places:
    """The objects that paths lead to in one call. `walked`: those known already, by the id of a path that stays alive."""

    def __init__(self, local_values: Mapping[str, Any], cells: Mapping[str, Any] | None, walked: Mapping[int, Any] | None = None) -> None:
        self._local_values = local_values
        self._cells = cells
        self._walked = {} if walked is None else walked

    def at(self, path: Path) -> Any:
        """The object at `path`. Raises PathError."""
        return resolve(path, self._local_values, self._cells)

    def all(self, paths: Sequence[Path]) -> list[Any]:
        """The objects at `paths`. Raises PathError."""
        walked = self._walked
        found = [walked[id(path)] for path in paths if id(path) in walked]
        return found if len(found) == len(paths) else resolve_all(paths, self._local_values, self._cells)


Emit = Callable[[Writer, Path, Constant], Iterable[str]]
"""(writer, the guard's path, constant) -> Python conditions under which the guard fails, in the order in which they are tested."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)  # each generated method costs a warm start some 0.2 ms
class ValueRule:
    """A predicate about the one object at a guard's path."""

    evaluate: Callable[[Any, Constant], Finding]
    """(object, constant) -> finding. May raise whatever the object's own methods raise: then the guard does not hold."""
    quick: Callable[[Any, Constant], bool] | None = None
    """The same without words, for predicates that guard sets are full of; None: `evaluate` is asked."""
    emit: Emit | None = None
    """None: the generated function calls `evaluate`."""
    record: Callable[[Recorder, Any, Constant], None] | None = None
    """Append what was read of an object that lives on to a native table. None: no entry can say it, and Python checks at each call."""
    covered: Covered = Covered.SCALAR
    record_tensor: Callable[[Recorder, Any, Path, Constant], None] | None = None
    """As `record`, for a tensor that is an argument of the call (`Live`), where `covered` does not decide."""
    of_class: bool = False
    """Whether the object's class decides."""
    order: int = USUAL
    keeps_memory_safe: bool = False
    """Whether generated code reads and writes where it may only while the guard holds: no setting leaves the check out."""
    words: Callable[[Constant], str] | None = None
    """The constant as people read it in listings; None: as plain data on a line."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)  # each generated method costs a warm start some 0.2 ms
class RelationRule:
    """A predicate about several objects, or about torch's state; its guards stand at ("state",) or at the first of the objects."""

    evaluate: Callable[[Path, Constant, Places], Finding]
    quick: Callable[[Path, Constant, Places], bool] | None = None
    emit: Emit
    record: Callable[[Recorder, Path, Constant], None]
    order: int = USUAL
    keeps_memory_safe: bool = False
    words: Callable[[Constant], str] | None = None


Rule = ValueRule | RelationRule


__all__ = [
    "BEFORE_OTHERS",
    "Constant",
    "Covered",
    "DIGESTS",
    "Emit",
    "Finding",
    "Live",
    "Opaque",
    "Places",
    "Reads",
    "Recorder",
    "RelationRule",
    "Rule",
    "SEVERAL_OBJECTS",
    "USUAL",
    "ValueRule",
    "Writer",
]
