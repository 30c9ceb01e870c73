"""What the files around a program need of it, as Protocols: `Program` has all of this, and none of those files imports it."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from precast.artifact_store import Store
from precast.artifact_store.format.guards import Guard
from precast.runtime.frames.entry import Entry, LocalsOf
from precast.runtime.programs.variant import Binding, EagerVariant, Variant
from precast.runtime.settings.backends import Backend


class Configured(Protocol):
    """A program's names and settings: what remembering, waiting and falling back to eager execution need."""

    @property
    def name(self) -> str:
        """For people."""

    @property
    def key(self) -> str:
        """Its folder in the store."""

    @property
    def store(self) -> Store:
        """Where its artifacts are."""

    @property
    def options(self) -> Mapping[str, Any]:
        """All of precast's options, with their values."""

    @property
    def target(self) -> str:
        """What it is compiled for."""

    @property
    def backend(self) -> Backend | None:
        """Who compiles its graphs; None: precast."""

    @property
    def require_hit(self) -> bool:
        """Whether a miss raises."""


class Explainable(Configured, Protocol):
    """What explaining a hit or a miss needs: the program's code, how a call becomes locals, and its variants in this process."""

    @property
    def entry(self) -> Entry:
        """The function that is called, with the arguments that precede the user's."""

    @property
    def code(self) -> types.CodeType:
        """The code that is compiled."""

    @property
    def digest(self) -> str:
        """Of that code."""

    @property
    def locals_of(self) -> LocalsOf:
        """From a call's arguments to the frame's locals."""

    @property
    def extra_guards(self) -> tuple[Guard, ...]:
        """Guards that hold for each of its variants, beside those that are stored."""

    @property
    def variants(self) -> Sequence[Variant | EagerVariant]:
        """What this process has loaded or compiled, in the order in which calls try it."""

    @property
    def unloadable(self) -> Mapping[str, str]:
        """Ids of the artifacts that this process tried to load and could not, with the reasons."""

    @property
    def is_part(self) -> bool:
        """Whether it is a part of another program: what follows a graph break, or is called between graphs."""


class Compilable(Explainable, Protocol):
    """What the compile callable is given."""

    @property
    def free_as_locals(self) -> bool:
        """Whether the contents of the traced function's free variables are among the program's locals."""

    def traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[types.FunctionType, tuple[Any, ...], Mapping[str, Any]]:
        """The function to trace for this call, and its arguments."""


class Serving(Compilable, Protocol):
    """What serving a call that no variant fits needs."""

    def find(self, local_values: Mapping[str, Any], counts: bool = True) -> Binding | None:
        """The binding of the first variant whose guards hold, here or in the store. `counts`: for a call."""

    def begin(self) -> Callable[[], None] | None:
        """Tell who waits for it that a compile begins; what to call when it ends."""

    def as_written(self, calls_compiled: bool) -> Callable[..., Any]:
        """The original function. `calls_compiled`: what it calls is compiled, as far as it can be."""


__all__ = ["Compilable", "Configured", "Explainable", "Serving"]
