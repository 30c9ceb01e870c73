"""The scope of a fingerprint: the modules whose values count, so that a loading process computes what the building process computed.

A function may contain imports that did not run, and which modules of a package are imported differs between processes. The modules that the
building process had imported count; they are recorded, and a later process reads these and no others.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterable
from typing import Any

VERSIONED = frozenset(sys.stdlib_module_names) | {"torch", "torchgen", "functorch", "precast", "triton", "numpy", "sympy", "mpmath"}
"""Packages whose functions and constants are not followed: their version is part of the key."""
MISSING = object()


def is_versioned(module: Any) -> bool:
    """Whether a module of this name belongs to one of these packages."""
    root = str(module or "").partition(".")[0]
    return root in VERSIONED and root != "__main__"


def load(name: str) -> Any:
    """The module of this name, imported if it was not (which runs users' code); MISSING where that fails."""
    with contextlib.suppress(Exception, SystemExit):  # a user's module may raise anything
        importlib.import_module(name)  # also where it is in `sys.modules`: another thread may be in the middle of importing it
    return MISSING if (found := sys.modules.get(name)) is None else found


class Modules:
    """`only`: the modules that count, which are imported on demand; None: those count that are imported here. `used`: those that were
    read.
    """

    def __init__(self, only: Iterable[str] | None = None) -> None:
        self.used: set[str] = set()
        self._only = None if only is None else frozenset(only)
        for name in sorted(self._only or ()):
            load(name)

    def get(self, name: str) -> Any:
        """The module (or the object that replaced it in `sys.modules`), or MISSING where it does not count."""
        if self._only is not None and name not in self._only:
            return MISSING
        found = self._find(name)
        if found is not MISSING:
            self.used.add(name)
        return found

    def part(self, module: types.ModuleType, name: str) -> Any:
        """The attribute of a module; a submodule of a package only where that counts."""
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
    """A scope in which every module that is named counts and is imported."""

    def _find(self, name: str) -> Any:
        return load(name)

    def _may_load(self, module: types.ModuleType) -> bool:
        return hasattr(module, "__path__")
