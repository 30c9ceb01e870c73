"""The fingerprint of a function that is called without being traced: its code, the code of its reachable callees, and their constants.

Where two processes have the same fingerprint the function does the same. The contents of lists, dicts, tensors and other objects are not
part of it (docs/custom-operators.md).
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from precast.artifact_store.format.import_names import type_name
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.fingerprint.constants import constant_text
from precast.runtime.fingerprint.fingerprint import Account, Line, code_line
from precast.runtime.fingerprint.module_scope import Modules, is_versioned
from precast.runtime.fingerprint.resolve_names import Named, Place, closure, named, set_on_classes, written

_PARTIALS = (functools.partial, functools.partialmethod)
_LONG = 80
"""Letters of a name from which on no more are added."""
LIMIT = 250
"""Functions that are followed, the nearest first: further away stands what whole libraries are made of, down to the name of a session."""


def function_account(function: Any, modules: Modules | None = None) -> Account:
    """The fingerprint of the function. `modules`: the modules whose values count, by default those that are imported here."""
    modules = modules or Modules()
    lines = [*function_lines(function, modules)]
    return Account.of(lines, modules.used)


def function_lines(function: Any, modules: Modules) -> Iterator[Line]:
    """The code of the function and of its reachable callees, each with the constants that it reads and that none of them sets; then the
    contents of the classes and partials that they name."""
    reach = _Reach(function, modules)
    for helper, items in reach.found.items():
        where = _where(helper)
        yield code_line(where, digest(helper.__code__))
        for item in items:
            if (text := constant_text(item.value)) is not None:
                yield Line(f"{item.name} (read by {where})", f"{item.name}={text}")
    for met in reach.holders:
        for name, value in _constants_in(met, reach.changing):
            if (text := constant_text(value)) is not None:
                yield Line(f"{name} (read by {met.reader})" if met.reader else name, f"{name}={text}")


def reached(function: Any) -> Iterable[types.FunctionType]:
    """The function and its reachable callees in breadth-first order, without those of packages that are not followed."""
    return _Reach(function, Modules()).found


def objects_named(function: Any) -> list[Any]:
    """The objects that these functions, classes and partials name and that have no stable text: tables, registries, settings."""
    reach = _Reach(function, Modules())
    named_here = [item.value for items in reach.found.values() for item in items]
    held = [value for met in reach.holders for _, value in _constants_in(met, set())]
    return [value for value in (*named_here, *held) if constant_text(value) is None]


@dataclass(frozen=True, eq=False, repr=False)
class _Met:
    """A node of the call graph: a value, and the name by which the function `reader` refers to it."""

    reader: str
    name: str
    value: Any

    def part(self, suffix: str, value: Any) -> _Met:
        """A value that this one contains, under a longer name; names stop growing at `_LONG` characters, since tuples may nest deeply."""
        return _Met(self.reader, self.name + suffix if len(self.name) < _LONG else self.name, value)


class _Reach:
    """The call graph from a function. `found`: the functions, each with the values that it reads and that none of them sets; `holders`: the
    classes and partials among these values; `changing`: the variables and attributes that the functions set.

    The value of a variable that is set is not followed: before the code has run it may be another one, or missing.
    """

    def __init__(self, function: Any, modules: Modules) -> None:
        self.changing: set[Place] = set()
        self._modules = modules
        self._named: dict[types.FunctionType, list[Named]] = {}
        while True:
            self.found: dict[types.FunctionType, list[Named]] = {}
            self.holders: list[_Met] = []
            set_here = self._walk(function)
            if set_here <= self.changing:
                return
            self.changing |= set_here

    def _walk(self, function: Any) -> set[Place]:
        """Fills `found` and `holders`; returns the variables and attributes that the functions found set."""
        set_here: set[Place] = set()
        seen: dict[int, Any] = {}  # keeps the objects alive: the id of one that is freed could be another's
        queue = [_Met("", "", function)]
        at = 0
        while at < len(queue) and len(self.found) < LIMIT:
            met = queue[at]
            item = met.value
            at += 1
            if id(item) in seen:
                continue
            seen[id(item)] = item
            if not isinstance(item, types.FunctionType):
                if isinstance(item, type):
                    set_here |= _set_by_methods(item)
                if isinstance(item, (type, *_PARTIALS)):
                    self.holders.append(met)
                queue += [met.part(suffix, part) for suffix, part in _inside(item)]
            elif is_versioned(item.__module__):  # torch wraps what is registered: the user's function is in the wrapper's closure
                queue += [met.part("", held) for held in closure(item).values()]
            else:
                set_here |= written(item, self._modules)
                if item not in self._named:
                    self._named[item] = named(item, self._modules)
                kept = self.found[item] = [other for other in self._named[item] if not self.changing.intersection(other.places)]
                queue += [_Met(_where(item), other.name, other.value) for other in kept if _is_used(other)]
                queue.append(met.part("", item.__dict__.get("__wrapped__")))
        return set_here


def _is_used(item: Named) -> bool:
    """Whether code of the value may run. Where only data attributes of an object are read, its class's code does not."""
    return item.itself or isinstance(item.value, (type, tuple)) or not _class_of(item.value)


def _where(function: types.FunctionType) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _set_by_methods(cls: type) -> set[Place]:
    """Attributes that the methods of a user's class set on the class itself."""
    bases = _own_classes(cls)
    names: set[str] = set()
    for held in [held for base in bases for held in vars(base).values()]:
        method = held.__func__ if isinstance(held, classmethod) else held
        if isinstance(method, types.FunctionType):
            names |= set_on_classes(method, isinstance(held, classmethod))
    return {(id(base), name) for base in bases for name in names}


def _inside(value: Any) -> list[tuple[str, Any]]:
    """The callees that using a value may reach, each with the suffix to the value's name: the function that it wraps, the methods of a
    user's class and of its bases, the class of an object, the items of a tuple or frozenset."""
    if isinstance(value, _PARTIALS):
        return [("", value.func), *_arguments(value)]
    if isinstance(value, types.MethodType):
        return [("", value.__func__), ("", value.__self__)]
    if isinstance(value, (staticmethod, classmethod)):
        return [("", value.__func__)]
    if isinstance(value, property):
        return [("", value.fget), ("", value.fset)]
    if isinstance(value, (functools._lru_cache_wrapper, functools.cached_property)):
        return [("", getattr(value, "__wrapped__", None) or getattr(value, "func", None))]
    if isinstance(value, type):
        own = [(f".{part}", held) for base in _own_classes(value) for part, held in sorted(vars(base).items())]
        return [*own, *_class_of(value)]
    if isinstance(value, (tuple, frozenset)):
        parts = tuple.__iter__(value) if isinstance(value, tuple) else sorted(frozenset.__iter__(value), key=_order)
        held = [
            (f"[{n}]", part) for n, part in enumerate(parts) if callable(part) or isinstance(part, (tuple, frozenset)) or _class_of(part)
        ]
        return [*held, *_class_of(value)]
    return _class_of(value)


def _order(part: Any) -> str:
    """A sort key for the items of a frozenset, whose own order differs between processes."""
    if isinstance(part, _PARTIALS):
        return f"{_order(part.func)} {constant_text((part.args, *sorted(part.keywords.items())))}"
    if isinstance(part, types.FunctionType):
        held = (*(part.__defaults__ or ()), *closure(part).values())
        return f"{_where(part)} {digest(part.__code__)} {constant_text(held)}"
    return f"{type_name(type(part))} {constant_text(part)}"


def _class_of(value: Any) -> list[tuple[str, Any]]:
    """The class of an object, unless it comes from a package whose version is part of the key."""
    return [] if is_versioned(type(value).__module__) else [("", type(value))]


def _arguments(partial: functools.partial[Any] | functools.partialmethod[Any]) -> list[tuple[str, Any]]:
    return [(f"({part})", given) for part, given in [*enumerate(partial.args), *sorted(partial.keywords.items())]]


def _own_classes(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if not is_versioned(base.__module__)]


def _constants_in(met: _Met, changing: set[Place]) -> Iterator[tuple[str, Any]]:
    """The values that a class or partial contains, by name, without those that methods of the class set, and without classes and functions,
    which are nodes of their own."""
    value = met.value
    if not isinstance(value, type):
        held = _arguments(value)
    elif issubclass(value, enum.Enum):
        held = [(f".{part}", member) for part, member in sorted(value.__members__.items())]
    else:
        held = [
            (f".{part}", held)
            for base in _own_classes(value)
            for part, held in sorted(vars(base).items())
            if not part.startswith("__") and (id(base), part) not in changing and not isinstance(held, (type, types.FunctionType))
        ]
    for suffix, part in held:
        yield met.name + suffix, part
