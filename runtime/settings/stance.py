"""The stance: whether compiled programs compile, run eagerly or raise on a miss. `torch.compiler.set_stance` for precast's programs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch.utils._contextlib import _DecoratorContextManager

from precast.runtime.common.errors import OptionError, RegionError, public
from precast.runtime.common.eval_frame import eval_frame
from precast.runtime.settings.backends import Backend, CompilerFunction, make_backend

STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile")
FIRST_CALL_EAGER = ("eager_then_compile", "aot_eager_then_compile")
_COMPILING = ("default", "fail_on_recompile", *FIRST_CALL_EAGER)
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Forced:
    """The `force_backend` of a stance: as it was given, and resolved; `backend` is None for precast's own."""

    given: str | CompilerFunction
    backend: Backend | None


@dataclass(frozen=True)
class Stance:
    """`skip_guards`: check only differentiating guards and those on tensors. `forced`: the backend for all programs, if one is forced."""

    name: str = "default"
    skip_guards: bool = False
    forced: Forced | None = None


class _State:
    """The process's stance. `detour`: read by the native dispatcher; True where each call has to go through Python."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stance = Stance()
        self.disabled = os.environ.get("PRECAST_DISABLE", "") not in ("", "0")
        self.listeners: list[Callable[[bool], None]] = []

    @property
    def force_eager(self) -> bool:
        return self.disabled or self.stance.name == "force_eager"

    @property
    def detour(self) -> bool:
        return self.force_eager or self.stance.skip_guards or self.stance.forced is not None


state = _State()


def current() -> str:
    """The name of the stance in force; `force_eager` also under PRECAST_DISABLE=1."""
    return "force_eager" if state.disabled else state.stance.name


def _apply(stance: Stance) -> None:
    with state.lock:
        state.stance = stance
        for listener in state.listeners:
            listener(state.detour)


_forced: dict[object, Forced] = {}


def _forcing(backend: str | CompilerFunction) -> Forced:
    """One object per backend, so that its variants are found again under a later stance. Raises OptionError for an unknown backend."""
    key = backend if isinstance(backend, str) else id(backend)
    if key not in _forced:
        _forced[key] = Forced(backend, make_backend(backend, None, None, None)[0])
    return _forced[key]


_outside: set[int] = set()
_inside: set[int] = set()
_PRIVATE = "__precast_"


def leaves_region(function: Callable[..., Any]) -> None:
    """Marks `function` (a wrapper of `precast.disable`): calls below it are in no compiled region."""
    _outside.add(id(function.__code__))


def enters_region(function: F) -> F:
    """Marks `function`, which may run a program's original code: calls below it are in a compiled region."""
    _inside.add(id(function.__code__))
    return function


def in_region() -> bool:
    """Whether the caller runs inside a compiled program. It is looked up on the stack, so that calls of programs pay nothing for it."""
    callback = eval_frame.get_eval_frame_callback()
    ours = str(getattr(callback, "__module__", "")).startswith("precast.")  # it looks at what a program of precast calls
    if callback not in (None, False) and not ours:
        return True  # in a torch.compile region
    if current() not in _COMPILING:
        return False
    frame = sys._getframe(1)
    while frame is not None:
        if id(frame.f_code) in _outside:
            return False
        if id(frame.f_code) in _inside or any(name.startswith(_PRIVATE) for name in frame.f_code.co_names):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@public
class set_stance(_DecoratorContextManager):
    """Set the stance: as a plain call until further notice, as a context manager for a block, as a decorator for a function.

    default: compile on a miss. force_eager: run the original code. eager_on_recompile: a miss runs the original code.
    fail_on_recompile: a miss raises RecompileForbidden. eager_then_compile, aot_eager_then_compile: the first miss of a program runs the
    original code, later ones compile.
    `skip_guard_eval_unsafe`: check only the guards in which the loaded variants differ, and those on tensors; wrong results where
    another one has changed. The check is then made by Python, which the native one is faster than.
    `force_backend`: with the stance "default", programs are compiled by this backend (a name or a callable), whatever they were given;
    what their own backend made is kept, and used again afterwards. Programs of `precast.load` compile nothing, and are served as ever.
    Raises OptionError for an unknown stance or backend and for `force_backend` with another stance, RegionError inside a compiled program.
    """

    _dynamo_forbidden = True  # a tracer that meets this raises

    def __init__(
        self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False, force_backend: str | CompilerFunction | None = None
    ) -> None:
        if stance not in STANCES:
            raise OptionError(f"unknown stance {stance!r}; known: {', '.join(STANCES)}")
        if force_backend is not None and stance != "default":
            raise OptionError(f"non-default stance cannot have force_backend set: give force_backend= without the stance {stance!r}")
        if in_region():
            raise RegionError(
                "attempted to set_stance in a compiled region (precast.compile or torch.compile); set it outside of the compiled function, "
                "or in a function marked by precast.disable"
            )
        self.stance = Stance(stance, skip_guard_eval_unsafe, _forcing(force_backend) if force_backend is not None else None)
        self.previous = state.stance
        _apply(self.stance)

    def __call__(self, function: F) -> F:
        _apply(self.previous)  # as a decorator, the stance holds inside calls only
        wrapped: Any = super().__call__(function)
        wrapped._dynamo_forbidden = True
        return wrapped  # type: ignore[no-any-return]

    def clone(self) -> set_stance:
        forced = self.stance.forced.given if self.stance.forced is not None else None
        return set_stance(self.stance.name, skip_guard_eval_unsafe=self.stance.skip_guards, force_backend=forced)

    def __enter__(self) -> None:
        _apply(self.stance)

    def __exit__(self, *exc: object) -> None:
        _apply(self.previous)
