"""The stance: what a compiled program does when called. Like `torch.compiler.set_stance`, for precast."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from precast.runtime.errors import OptionError

Stance = Literal["default", "force_eager", "fail_on_recompile", "eager_on_recompile"]
STANCES = ("default", "force_eager", "fail_on_recompile", "eager_on_recompile")
F = TypeVar("F", bound=Callable[..., Any])


class _State:
    """`plain` is what the fast path looks at: True where nothing but the default has to be thought of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stance: Stance = "default"
        self.disabled = os.environ.get("PRECAST_DISABLE", "") not in ("", "0")
        self.listeners: list[Callable[[bool], None]] = []

    @property
    def force_eager(self) -> bool:
        return self.disabled or self.stance == "force_eager"


state = _State()


def current() -> Stance:
    """The stance in force; `force_eager` also under PRECAST_DISABLE=1."""
    return "force_eager" if state.disabled else state.stance


def _apply(stance: Stance) -> None:
    with state.lock:
        state.stance = stance
        for listener in state.listeners:
            listener(state.force_eager)


class set_stance:
    """Set the stance: as a plain call until further notice, as a context manager for a block, as a decorator for a function.

    default: compile on a miss. force_eager: run the original code. fail_on_recompile: a miss raises RecompileForbidden.
    eager_on_recompile: a miss runs the original code.
    """

    def __init__(self, stance: Stance = "default") -> None:
        if stance not in STANCES:
            raise OptionError(f"unknown stance {stance!r}; known: {', '.join(STANCES)}")
        self.stance: Stance = stance
        self.previous: Stance = state.stance
        _apply(stance)

    def __enter__(self) -> None:
        _apply(self.stance)

    def __exit__(self, *exc: object) -> None:
        _apply(self.previous)

    def __call__(self, function: F) -> F:
        _apply(self.previous)  # as a decorator, the stance holds inside calls only

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return function(*args, **kwargs)

        return wrapped  # type: ignore[return-value]
