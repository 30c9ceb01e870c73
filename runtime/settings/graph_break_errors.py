"""`error_on_graph_break`: whether a graph break met while compiling is an error; for a block or a function, in traced code too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from precast.runtime.common.errors import DirectiveError

F = TypeVar("F", bound=Callable[..., Any])


class _State:
    """`raises`: whether graph breaks raise; None where only the program's own option decides."""

    raises: bool | None = None


state = _State()


class ErrorOnGraphBreak:
    """A context manager and decorator. It holds for compiles inside of it; the innermost one counts."""

    def __init__(self, raises: bool) -> None:
        self.raises = raises
        self._before: list[bool | None] = []

    def __enter__(self) -> None:
        self._before.append(state.raises)
        state.raises = self.raises

    def __exit__(self, *exc: object) -> None:
        state.raises = self._before.pop()

    def __call__(self, function: F) -> F:
        raises = self.raises

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            with error_on_graph_break(raises):
                return function(*args, **kwargs)

        return cast(F, checked)


def error_on_graph_break(error_on_graph_break: bool) -> ErrorOnGraphBreak:
    """While compiling inside of this block or function, raise GraphBreakError at a graph break (True) or go on behind it (False).

    Unlike `fullgraph`, it can be switched for parts of a program, inside of it too, and allows several graphs. With `fullgraph` it does
    nothing. Raises DirectiveError for anything but a bool.
    """
    if not isinstance(error_on_graph_break, bool):
        raise DirectiveError(f"error_on_graph_break must be a bool, got {type(error_on_graph_break)}")
    return ErrorOnGraphBreak(error_on_graph_break)


__all__ = ["ErrorOnGraphBreak", "error_on_graph_break", "state"]
