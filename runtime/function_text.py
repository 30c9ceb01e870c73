"""The text that stands for a function which no tracer reads: its code, that of the functions which it names, and their constants.

Two processes in which it is the same run the same. What it cannot tell (docs/custom-operators.md): lists, dicts, tensors and other objects.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from precast.artifact_store.constants import Untaggable, tag
from precast.runtime.code_digest import digest
from precast.runtime.named import Named, closure, is_versioned, named, written

_PLAIN = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, range, slice)
_TORCH = (torch.Size, torch.dtype, torch.device, torch.layout, torch.memory_format)
_BY_NAME = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type, torch._ops.OpOverload, torch._ops.OpOverloadPacket)
_HOLDERS = (staticmethod, classmethod, types.MethodType)
LIMIT = 250
"""Functions that are followed, the nearest first: further away stands what whole libraries are made of, down to the name of a session."""


def function_digest(function: Any) -> str:
    """Hex digest of the function's text."""
    return hashlib.sha256("\n".join(function_text(function)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def function_text(function: Any) -> Iterator[str]:
    """The code of the function and of its helpers, each with the constants that it reads and that none of them sets."""
    found = _reached(function)
    changing = set().union(*map(written, found))
    for helper, items in found.items():
        yield digest(helper.__code__)
        for item in items:
            if item.place not in changing:
                yield from _lines(item.name, item.value)


def reached(function: Any) -> Iterable[types.FunctionType]:
    """The function and the plain functions that it names, outside of packages that are not followed, the nearest first."""
    return _reached(function)


def _reached(function: Any) -> dict[types.FunctionType, list[Named]]:
    found: dict[types.FunctionType, list[Named]] = {}
    seen: set[int] = set()
    queue: list[Any] = [function]
    while queue and len(found) < LIMIT:
        item = queue.pop(0)
        if id(item) in seen:
            continue
        seen.add(id(item))
        if not isinstance(item, types.FunctionType):
            queue += _inside(item)
        elif is_versioned(item.__module__):  # torch wraps what is registered: the user's function is in the wrapper's closure
            queue += closure(item).values()
        else:
            found[item] = named(item)
            queue += [other.value for other in found[item]]
            queue.append(item.__dict__.get("__wrapped__"))
    return found


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
    return []


def _own_classes(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if not is_versioned(base.__module__)]


def _lines(name: str, value: Any) -> Iterator[str]:
    """What is said of a value: constants by value, what is called by name. Nothing of other objects: they may change at any time."""
    if isinstance(value, functools.partial):
        for part, given in [*enumerate(value.args), *sorted(value.keywords.items())]:
            yield from _lines(f"{name}({part})", given)
    if isinstance(value, type) and issubclass(value, enum.Enum):
        for part, member in sorted(value.__members__.items()):
            yield from _lines(f"{name}.{part}", member.value)
    elif isinstance(value, type):
        for base in _own_classes(value):
            for part, held in sorted(vars(base).items()):
                if not part.startswith("__") and _is_constant(held):
                    yield from _lines(f"{name}.{part}", held)
    if isinstance(value, _BY_NAME) or _is_constant(value):
        try:
            yield f"{name}={tag(value)!r}"
        except Untaggable:  # a tuple of objects, a function without a name
            return


def _is_constant(value: Any) -> bool:
    if type(value) in _PLAIN or type(value) in _TORCH or isinstance(value, (enum.Enum, tuple)):
        return True
    return type(value).__module__ == "triton.language.core" and type(value).__name__ in ("constexpr", "dtype")
