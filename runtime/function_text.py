"""What is said of a function that no tracer reads: its code, that of the functions which it names, and their constants.

Two processes in which it is the same run the same. What it cannot tell (docs/custom-operators.md): lists, dicts, tensors and other objects.
"""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

from precast.runtime.account import Account, Line, code_line
from precast.runtime.code_digest import digest
from precast.runtime.constant_text import constant_text
from precast.runtime.modules import Modules, is_versioned
from precast.runtime.named import Named, Place, closure, named, set_on_classes, written

_HOLDERS = (staticmethod, classmethod, types.MethodType)
LIMIT = 250
"""Functions that are followed, the nearest first: further away stands what whole libraries are made of, down to the name of a session."""


def function_account(function: Any, modules: Modules | None = None) -> Account:
    """The account of the function; `modules`: those that count (those that are loaded here)."""
    modules = modules or Modules()
    lines = [*function_lines(function, modules)]
    return Account.of(lines, modules.used)


def function_lines(function: Any, modules: Modules) -> Iterator[Line]:
    """The code of the function and of its helpers, each with the constants that it reads and that none of them sets."""
    reach = _Reach(function, modules)
    for helper, items in reach.found.items():
        where = f"{helper.__module__}.{helper.__qualname__}"
        yield code_line(where, digest(helper.__code__))
        for item in items:
            for name, text in _said(item.name, item.value, reach.changing):
                yield Line(f"{name} (read by {where})", f"{name}={text}")


def reached(function: Any) -> Iterable[types.FunctionType]:
    """The function and the plain functions that it names, outside of packages that are not followed, the nearest first."""
    return _Reach(function, Modules()).found


class _Reach:
    """`found`: the functions, each with what it reads and none of them sets; `changing`: the places that they set.

    What such a place holds is not followed: it may be something else, or nothing, before the code has run.
    """

    def __init__(self, function: Any, modules: Modules) -> None:
        self.changing: set[Place] = set()
        self._modules = modules
        self._named: dict[types.FunctionType, list[Named]] = {}
        while True:
            self.found: dict[types.FunctionType, list[Named]] = {}
            set_here = self._walk(function)
            if set_here <= self.changing:
                return
            self.changing |= set_here

    def _walk(self, function: Any) -> set[Place]:
        """Fills `found`; the places that the functions in it set."""
        set_here: set[Place] = set()
        seen: dict[int, Any] = {}  # with the objects: one that is gone would leave its identity to another
        queue: list[Any] = [function]
        at = 0
        while at < len(queue) and len(self.found) < LIMIT:
            item = queue[at]
            at += 1
            if id(item) in seen:
                continue
            seen[id(item)] = item
            if not isinstance(item, types.FunctionType):
                if isinstance(item, type):
                    set_here |= _set_by_methods(item)
                queue += _inside(item)
            elif is_versioned(item.__module__):  # torch wraps what is registered: the user's function is in the wrapper's closure
                queue += closure(item).values()
            else:
                set_here |= written(item, self._modules)
                if item not in self._named:
                    self._named[item] = named(item, self._modules)
                kept = self.found[item] = [other for other in self._named[item] if not self.changing.intersection(other.places)]
                queue += [other.value for other in kept]
                queue.append(item.__dict__.get("__wrapped__"))
        return set_here


def _set_by_methods(cls: type) -> set[Place]:
    """Attributes that the methods of a user's class set on the class itself."""
    bases = _own_classes(cls)
    names: set[str] = set()
    for held in [held for base in bases for held in vars(base).values()]:
        method = held.__func__ if isinstance(held, classmethod) else held
        if isinstance(method, types.FunctionType):
            names |= set_on_classes(method, isinstance(held, classmethod))
    return {(id(base), name) for base in bases for name in names}


def _inside(value: Any) -> list[Any]:
    """What runs where this is called: what it wraps; of a user's class its own methods and those of the classes below it."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, _HOLDERS):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget, value.fset]
    if isinstance(value, (functools._lru_cache_wrapper, functools.cached_property)):
        return [getattr(value, "__wrapped__", None) or getattr(value, "func", None)]
    if isinstance(value, type):
        return [part for base in _own_classes(value) for _, part in sorted(vars(base).items())]
    if isinstance(value, tuple):
        return [part for part in tuple.__iter__(value) if callable(part) or isinstance(part, tuple)]
    return []


def _own_classes(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if not is_versioned(base.__module__)]


def _said(name: str, value: Any, changing: set[Place]) -> Iterator[tuple[str, str]]:
    """What is said of a value: constants by value, what is called by name. Nothing of other objects: they may change at any time."""
    if isinstance(value, functools.partial):
        for part, given in [*enumerate(value.args), *sorted(value.keywords.items())]:
            yield from _said(f"{name}({part})", given, changing)
    if isinstance(value, type) and issubclass(value, enum.Enum):
        for part, member in sorted(value.__members__.items()):
            yield f"{name}.{part}", str(constant_text(member))
    elif isinstance(value, type):
        for base in _own_classes(value):
            for part, held in sorted(vars(base).items()):
                if not part.startswith("__") and (id(base), part) not in changing and not isinstance(held, (type, types.FunctionType)):
                    text = constant_text(held)
                    if text is not None:
                        yield f"{name}.{part}", text
    text = constant_text(value)
    if text is not None:
        yield name, text
