"""The code behind a tensor subclass that wraps plain tensors: a graph was traced through its dispatch, and no tracer of Python read that.

Many classes dispatch to functions that decorators put into a table of the class, all of them called `_`: those have no name to be found by.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.artifact_store.guards import Guard, Predicate
from precast.artifact_store.import_names import Untaggable, find_object, hold, object_name, type_name
from precast.runtime.account import Account, Line, names_of
from precast.runtime.code_digest import digest
from precast.runtime.constant_text import constant_text
from precast.runtime.function_text import function_lines, reached
from precast.runtime.modules import Modules, is_versioned, load

SUBCLASS = "subclass "
"""Begins the module part of a digest's name where it belongs to such a class."""
_DEPTH = 3
"""Tables within tables that are looked into."""


def subclass_account(cls: type, modules: Modules | None = None) -> Account:
    """What the methods of the class and what its tables call are, with the helpers and the constants that they name."""
    modules = modules or Modules()
    table = list(_handlers(cls))
    lines = [Line(f"what {cls.__qualname__} dispatches to", f"{key}: {_said(handler)}") for key, handler in table]
    return Account.of([*lines, *function_lines(_parts(cls, table), modules)], modules.used)


def subclass_code(cls: type) -> Iterable[types.CodeType]:
    """The code that `subclass_account` covers, nested functions left out."""
    return [function.__code__ for function in reached(dispatching(cls))]


def dispatching(cls: type) -> tuple[Any, ...]:
    """The class, and what its tables call."""
    return _parts(cls, list(_handlers(cls)))


def subclass_guards(digests: Iterable[str]) -> tuple[Guard, ...]:
    """That the classes are those whose code was compared: a class that is defined again stands under the same name."""
    found = []
    for name in digests:
        kind, _, rest = name.partition("#")[0].partition(" ")
        if f"{kind} " != SUBCLASS:
            continue
        module, _, qualname = rest.partition(":")
        first, *more = qualname.split(".")
        try:
            cls = find_object(f"{module}:{qualname}")
        except LookupError:
            continue  # there is no such class yet, and the digest says so
        path = (("global", module, first), *(("attr", part) for part in more))
        found.append(Guard(path, Predicate.IS, hold(cls)))
    return tuple(found)


def changed_subclass(module: str, qualname: str, wanted: str) -> str:
    """Why the class is not what it was; empty where it is."""
    load(module)
    then = Account.read(wanted)
    try:
        now = subclass_account(find_object(f"{module}:{qualname}"), Modules(then.modules))
    except LookupError as error:
        return f"the class {qualname} of {module} is gone: {error}"
    if now.digest == then.digest:
        return ""
    return f"the class {qualname} of {module}, or what it dispatches to, has changed since{names_of(then.differing(now))}"


def _parts(cls: type, table: list[tuple[str, Any]]) -> tuple[Any, ...]:
    return (cls, *(handler for _, handler in table))


def _handlers(cls: type) -> Iterator[tuple[str, Any]]:
    """What can be called in dicts, lists and tuples that the class and its bases hold, by where it stands, in an order of its own."""
    for base in cls.__mro__:
        if is_versioned(base.__module__):
            continue
        for name, value in sorted(vars(base).items()):
            yield from sorted(_within(value, f"{type_name(base)}.{name}", cls, _DEPTH), key=lambda found: found[0])


def _within(value: Any, where: str, cls: type, depth: int) -> Iterator[tuple[str, Any]]:
    if callable(value):
        if depth < _DEPTH:
            yield where, value
    elif isinstance(value, dict) and depth:
        for key, held in tuple(value.items()):
            if not isinstance(key, type) or issubclass(cls, key):  # one table may serve many classes
                yield from _within(held, f"{where}[{_key(key)}]", cls, depth - 1)
    elif isinstance(value, list | tuple) and depth:
        for i, held in enumerate(value):
            yield from _within(held, f"{where}[{i}]", cls, depth - 1)


def _said(handler: Any) -> str:
    """Which one stands there, as far as a name tells it."""
    if isinstance(handler, types.FunctionType):
        return f"{handler.__module__}.{handler.__qualname__} {digest(handler.__code__)}"
    return constant_text(handler) or type_name(type(handler))


def _key(key: Any) -> str:
    if isinstance(key, str | int | torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return str(key)
    try:
        return object_name(key)
    except Untaggable:
        return type_name(type(key))


__all__ = ["SUBCLASS", "changed_subclass", "dispatching", "subclass_account", "subclass_code", "subclass_guards"]
