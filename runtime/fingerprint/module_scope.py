"""Which modules count when it is read what code depends on, so that a process that loads gets the answer of the one that built.

A function may import in a branch that is not taken, and of a package any module may be loaded by others. The code ran with modules
that the building process had loaded; so these count, are written down, and a later process looks at the same ones and at no others.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterable
from typing import Any

VERSIONED = frozenset(sys.stdlib_module_names) | {"torch", "torchgen", "functorch", "precast", "triton", "numpy", "sympy", "mpmath"}
"""Packages whose functions and constants are not followed: users do not edit them."""
MISSING = object()


def is_versioned(module: Any) -> bool:
    """Whether a module of this name belongs to a package that is not followed."""
    root = str(module or "").partition(".")[0]
    return root in VERSIONED and root != "__main__"


def load(name: str) -> Any:
    """The module of this name, imported here where that has not happened yet; MISSING where it cannot be. Runs a user's module."""
    with contextlib.suppress(Exception, SystemExit):  # a user's module may do anything: with what it raises there is none
        importlib.import_module(name)  # one that is there, too: another thread may be in the middle of importing it
    return MISSING if (found := sys.modules.get(name)) is None else found


class Modules:
    """`only`: these and no others count, and are loaded; without it those count that are loaded here. `used`: those that were looked at."""

    def __init__(self, only: Iterable[str] | None = None) -> None:
        self.used: set[str] = set()
        self._only = None if only is None else frozenset(only)
        for name in sorted(self._only or ()):
            load(name)

    def get(self, name: str) -> Any:
        """The module (or what has put itself in its place), or MISSING where it does not count."""
        if self._only is not None and name not in self._only:
            return MISSING
        found = self._find(name)
        if found is not MISSING:
            self.used.add(name)
        return found

    def part(self, module: types.ModuleType, name: str) -> Any:
        """What a module holds under this name; of a package's modules only those that count."""
        whole = f"{module.__name__}.{name}"
        try:
            held = getattr(module, name, MISSING)
        except (Exception, SystemExit):  # noqa: BLE001 - a lazy module may raise anything
            return MISSING
        if isinstance(held, types.ModuleType) and sys.modules.get(whole) is held or held is MISSING and self._may_load(module):
            return self.get(whole)
        return held

    def _find(self, name: str) -> Any:
        return sys.modules.get(name, MISSING)

    def _may_load(self, module: types.ModuleType) -> bool:
        return False


class AllModules(Modules):
    """All that are named count, and are loaded."""

    def _find(self, name: str) -> Any:
        return load(name)

    def _may_load(self, module: types.ModuleType) -> bool:
        return hasattr(module, "__path__")
