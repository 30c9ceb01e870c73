"""Finding the functions that were traced into, to see whether their code is still what was compiled."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from precast.runtime.code_digest import digest

_LIBRARY = ("torch",)
"""Packages whose version is part of the artifact's key: their code is not read."""


def changed_code(digests: Mapping[str, str], entry: types.FunctionType) -> str:
    """Which of `module:qualname -> digest` has other code now, as a sentence; empty when none has. ":qualname" is the entry's own."""
    for name, wanted in digests.items():
        module, _, qualname = name.partition(":")
        if module.partition(".")[0] in _LIBRARY:
            continue
        if not module:
            found = {digest(entry.__code__)}
        else:
            found = _digests_of(module, qualname)
        if found and wanted not in found:
            return f"the code of {qualname} in {module or 'the program'} has changed since"
    return ""


@functools.lru_cache(maxsize=4096)
def _digests_of(module: str, qualname: str) -> frozenset[str]:
    """Digests of all code with this qualified name in `module` (decorated versions and nested functions too); empty where it is not loaded."""
    loaded = sys.modules.get(module)
    if loaded is None:
        return frozenset()
    direct = _attribute(loaded, qualname)
    if direct is not None:
        found = frozenset(digest(code) for code in _code_objects(direct) if code.co_qualname == qualname)
        if found:
            return found
    return frozenset(digest(code) for code in _module_code(module) if code.co_qualname == qualname)


def forget() -> None:
    """Look at all code again (it may have been reloaded)."""
    _digests_of.cache_clear()
    _module_code.cache_clear()


def _attribute(module: types.ModuleType, qualname: str) -> Any:
    place: Any = module
    for part in qualname.split("."):
        place = inspect.getattr_static(place, part, None)
        if place is None:
            return None
    return place


@functools.lru_cache(maxsize=64)
def _module_code(module: str) -> tuple[types.CodeType, ...]:
    """Every code object that functions and classes of the module hold, closures and nested functions included."""
    found: dict[int, types.CodeType] = {}
    for value in list(vars(sys.modules[module]).values()):
        members: Iterable[Any] = list(vars(value).values()) if isinstance(value, type) and value.__module__ == module else [value]
        for member in members:
            for code in _code_objects(member):
                found[id(code)] = code
    return tuple(found.values())


def _code_objects(value: Any, depth: int = 0) -> Iterator[types.CodeType]:
    """Code of a function, method, property or decorator's result, with nested functions, wrapped functions and closure contents."""
    if depth > 6:
        return
    if isinstance(value, (staticmethod, classmethod)):
        yield from _code_objects(value.__func__, depth + 1)
    elif isinstance(value, property):
        for part in (value.fget, value.fset, value.fdel):
            yield from _code_objects(part, depth + 1)
    elif isinstance(value, types.FunctionType):
        yield from _code_objects(value.__code__, depth + 1)
        for cell in value.__closure__ or ():
            try:
                yield from _code_objects(cell.cell_contents, depth + 1)
            except ValueError:
                continue  # an empty cell holds no code
        if "__wrapped__" in value.__dict__:
            yield from _code_objects(value.__wrapped__, depth + 1)
    elif isinstance(value, types.MethodType):
        yield from _code_objects(value.__func__, depth + 1)
    elif isinstance(value, types.CodeType):
        yield value
        for constant in value.co_consts:
            if isinstance(constant, types.CodeType):
                yield from _code_objects(constant, depth + 1)
