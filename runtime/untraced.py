"""Functions that ran while a graph was made without the tracer's reading them: what they name, as a digest, compared once per process.

Their own code is among the digests of code; this is about their constants and helpers.
"""

from __future__ import annotations

import importlib
import sys
import types

from precast.runtime.code_digest import digest, find_functions
from precast.runtime.function_text import function_digest

UNTRACED = "untraced "
"""Begins the module part of a digest's name where it belongs to such a function."""
_known: dict[tuple[str, str], frozenset[str]] = {}


def untraced_digests(module: str, qualname: str, code: types.CodeType) -> tuple[str, ...]:
    """The digests of the functions with this code that are found under this name, read now; none where it cannot be found."""
    wanted = digest(code)
    _known.pop((module, qualname), None)
    return tuple(sorted({function_digest(f) for f in find_functions(module, qualname) if digest(f.__code__) == wanted}))


def changed_names(module: str, qualname: str, wanted: str) -> str:
    """Why what the function names is not what it was; empty where it is."""
    known = _known.get((module, qualname))
    if known is None:
        known = _known[module, qualname] = frozenset(map(function_digest, _functions(module, qualname)))
    if wanted in known:
        return ""
    return f"{qualname} of {module}, which is not traced, or a function or a constant that it names has changed since"


def forget() -> None:
    """Look at all of them again when they are next needed."""
    _known.clear()


def _functions(module: str, qualname: str) -> list[types.FunctionType]:
    """The traced code had imported the module, so it is imported here where that has not happened yet."""
    if module not in sys.modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - a user's module runs here; with what it raises there is no function
            return []
    return find_functions(module, qualname)
