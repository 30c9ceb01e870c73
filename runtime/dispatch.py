"""Dispatchers: the callables that users end up calling. This is the plain Python one; `native.py` offers the fast one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precast.runtime.entry import Entry
from precast.runtime.program import Program


def make_dispatcher(program: Program, entry: Entry) -> Callable[..., Any]:
    """A callable that takes the user's arguments (without the entry's prefix) and runs `program`."""
    prefix, keywords, call = entry.prefix, dict(entry.keywords), program.call
    if not prefix and not keywords:

        def dispatch(*args: Any, **kwargs: Any) -> Any:
            return call(args, kwargs)

        return dispatch

    def dispatch_with_prefix(*args: Any, **kwargs: Any) -> Any:
        return call((*prefix, *args), {**keywords, **kwargs} if keywords else kwargs)

    return dispatch_with_prefix
