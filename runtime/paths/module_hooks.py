"""A module's hooks by position, since the keys under which torch stores them count the hooks of the process."""

from __future__ import annotations

from typing import Any

HOOKS_OF = {
    "_forward_hooks_with_kwargs": "_forward_hooks",
    "_forward_hooks_always_called": "_forward_hooks",
    "_forward_pre_hooks_with_kwargs": "_forward_pre_hooks",
}
"""By the name of a table of flags, that of the hooks which have them or not."""


def flagged(module: Any, name: str) -> tuple[int, ...]:
    """Positions of the hooks that are in a table of flags."""
    tables = module.__dict__
    return tuple(place for place, key in enumerate(tables[HOOKS_OF[name]]) if key in tables[name])


__all__ = ["HOOKS_OF", "flagged"]
