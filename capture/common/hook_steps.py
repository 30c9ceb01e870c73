"""Hooks of modules in guards: a hook is identified by its position among those of its module, since torch's keys count the hooks of a
process and so differ between processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from precast.artifact_store.format.guards import Guard, Path, Predicate, Step
from precast.artifact_store.format.tagged_constants import tag
from precast.runtime.paths.paths import HOOKS_OF, flagged

ValueOf = Callable[[Path], Any]
_GLOBAL = tuple(("global", torch.nn.modules.module.__name__, f"_global{name}") for name in HOOKS_OF)
_ON_KEYS = ("DICT_CONTAINS", "DICT_NOT_CONTAINS", "DICT_KEYS_MATCH")


def hook_guards(kind: str, path: Path, value_of: ValueOf) -> list[Guard] | None:
    """The replacement of a guard on the keys of a table of hooks or flags (`_forward_hooks_with_kwargs`, …), or on the value at such a key
    of flags; None where it stands as it is.
    """
    table = path if kind in _ON_KEYS else path[:-1]
    if table[-1:] and table[-1] in _GLOBAL and not value_of(table):
        return [Guard(table, Predicate.EMPTY)]
    name = _table(table, value_of)
    if name in HOOKS_OF:
        return [Guard((*table[:-1], ("flagged", name)), Predicate.EQUALS, tag(flagged(value_of(table[:-1]), name)))]
    if name and table is path:
        return [Guard(path, Predicate.LENGTH, len(value_of(path)))]
    return None


def hook_step(key: Any, before: Path, value_of: ValueOf) -> Step | None:
    """From a module's table of hooks to the one with this key; None where `before` leads to something else."""
    if _table(before, value_of) not in HOOKS_OF.values():
        return None
    return ("hook", list(value_of(before)).index(key))


def _table(path: Path, value_of: ValueOf) -> str:
    """The name of a module's own table of hooks or flags; "" where the path leads to something else."""
    if len(path) < 2 or path[-1][0] not in ("attr", "raw") or path[-1][1] not in (*HOOKS_OF, *HOOKS_OF.values()):
        return ""
    return str(path[-1][1]) if isinstance(value_of(path[:-1]), torch.nn.Module) else ""


__all__ = ["hook_guards", "hook_step"]
