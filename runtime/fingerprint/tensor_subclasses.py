"""Fingerprints of the code behind a tensor subclass: graphs are traced through its `__torch_dispatch__`, whose Python code is not traced.

Many classes dispatch to functions that decorators put into a table of the class and that are all called `_`, so names do not find them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.artifact_store.format.guards import Guard, Predicate
from precast.artifact_store.format.import_names import Untaggable, find_object, hold, object_name, type_name
from precast.runtime.fingerprint.bytecode import digest
from precast.runtime.fingerprint.constants import constant_text
from precast.runtime.fingerprint.fingerprint import Account, Line, names_of
from precast.runtime.fingerprint.functions import function_lines, reached
from precast.runtime.fingerprint.module_scope import Modules, is_versioned, load

SUBCLASS = "subclass "
"""The prefix, in the name of a manifest's digest, that says it is of such a class."""
_DEPTH = 3
"""How deep nested tables are searched."""


def subclass_account(cls: type, modules: Modules | None = None) -> Account:
    """The fingerprint of the class: its methods, the handlers in its tables, and the callees and constants of both."""
    modules = modules or Modules()
    table = list(_handlers(cls))
    lines = [Line(f"what {cls.__qualname__} dispatches to", f"{key}: {_said(handler)}") for key, handler in table]
    return Account.of([*lines, *function_lines(_parts(cls, table), modules)], modules.used)


def subclass_code(cls: type) -> Iterable[types.CodeType]:
    """The code that `subclass_account` covers, nested functions left out."""
    return [function.__code__ for function in reached(dispatching(cls))]


def dispatching(cls: type) -> tuple[Any, ...]:
    """The class and the handlers in its tables."""
    return _parts(cls, list(_handlers(cls)))


def subclass_guards(digests: Iterable[str]) -> tuple[Guard, ...]:
    """Guards that the classes are the very objects whose fingerprints were compared: a class may be defined again under the same name."""
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
    """Why the class's fingerprint has changed; "" where it has not."""
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
    """The callables in dicts, lists and tuples of the class and its bases, by their places, in an order that all processes have."""
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
    """The name of a handler, as far as it has one."""
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
