"""What a user of the runtime can meet. Every message says what, where and what to do."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from precast.artifact_store import Manifest
    from precast.artifact_store.format.guards import Guard
from typing import TypeVar

C = TypeVar("C", bound=type)


def public(cls: C) -> C:
    """A decorator of classes that users meet: tracebacks, pickles and messages name them as `precast.X`, which `precast` resolves."""
    cls.__module__ = "precast"
    return cls


@public
class PrecastError(RuntimeError):
    """Base of the errors that precast raises on purpose."""


@public
class OptionError(PrecastError, ValueError):
    """An unknown option, mode or backend, or a value of the wrong type."""


@public
class DirectiveError(PrecastError, TypeError, ValueError, AssertionError):
    """A directive (`disable`, `substitute_in_graph`, …) was given something that it cannot be applied to."""


@public
class RegionError(PrecastError, AssertionError):
    """The compiler was reconfigured (`set_stance`) inside a compiled program."""


@public
class BackendError(PrecastError):
    """A backend other than precast's own raised while it compiled a graph; its error is the cause."""


@public
class GraphBreakError(PrecastError):
    """A program breaks where `error_on_graph_break` forbids it."""


@public
class GuardMiss(PrecastError):
    """No stored artifact fits this call, and compiling was forbidden. `explanation` holds why, variant by variant."""

    def __init__(self, message: str, explanation: Any = None) -> None:
        super().__init__(message)
        self.explanation = explanation


@public
class RecompileForbidden(GuardMiss):
    """A call would have compiled while the stance is `fail_on_recompile`."""


@public
class MarkError(PrecastError):
    """A dimension that was marked as dynamic is not: the code, or another mark, allows one size only (or fewer than the mark says)."""


@public
class CompileStopped(PrecastError):
    """The machine ended a compilation: no room on a disk, no memory. The program runs eagerly; with `fullgraph=True` this is raised."""


@public
class CompilerBroken(PrecastError):
    """Nothing can be compiled: the compiler cannot be imported, or this torch is none that precast supports. Calls run eagerly; raised
    with `fullgraph=True`, and where something is compiled ahead of time.
    """


@public
class StoreUnwritable(PrecastError):
    """What is to be compiled ahead of time could not be kept: raised before it is compiled."""


@public
class LoadError(PrecastError):
    """An artifact of the store cannot be used here (damaged, foreign, a symbol is missing). Always turned into a logged miss."""


class Refused(Exception):
    """Raised by the compile callable: this program, or this kind of call, cannot be compiled and has to run eagerly.

    `reason` is shown once; `hint` says what to do. With `guards` the refusal holds only for calls that pass them (a frame that needs a
    backward graph: the same program under `no_grad` still compiles) and fail one of `unless`, where there are any; without, for every call
    of the program. `skipped`: the function itself
    stays plain Python, as with torch.compile, which is worth no warning: what it calls may be compiled. `forbidden`: a graph break that
    `error_on_graph_break` forbids. `raises`: the code seems to raise an exception; where it does, nothing is known of other calls.
    `machine`: this machine cannot compile it (no compiler); nothing is said of the program, and others that share the store may.
    """

    def __init__(
        self,
        reason: str,
        hint: str = "",
        guards: Sequence[Guard] | None = None,
        *,
        skipped: bool = False,
        unless: Sequence[Guard] = (),
        forbidden: bool = False,
        raises: bool = False,
        machine: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.guards = tuple(guards) if guards is not None else ()
        self.unless = tuple(unless)
        self.forbidden = forbidden
        self.raises = raises
        self.machine = machine
        self.permanent = guards is None
        self.skipped = skipped

    @property
    def text(self) -> str:
        """The reason, and what to do."""
        return f"{self.reason} ({self.hint})" if self.hint else self.reason


@dataclass(frozen=True, eq=False, repr=False)
class InProcess:
    """What the compile callable returns for a variant that could not be put into the store: it lives in this process only.

    `graph`: the compiled graph where another backend made it; it takes all graph inputs in order.
    """

    manifest: Manifest
    blobs: Mapping[str, bytes]
    reason: str = ""
    graph: Callable[..., Any] | None = None


class Taken(str):
    """The id of an artifact that the compile callable did not make: another process stored it while this one captured the call."""

    __slots__ = ()


@dataclass(frozen=True, eq=False, repr=False)
class Deferred:
    """What the compile callable returns when the rest may be done later: the captured frame's guards, and the rest, which may raise."""

    guards: Sequence[Guard]
    finish: Callable[[], str | InProcess]


def failure_level(error: Exception) -> int:
    """The log level of a failed compile: with its stack as an error where precast may be to blame."""
    return logging.INFO if isinstance(error, CompileStopped) else logging.ERROR


def failure_text(error: Exception, reset: str = "precast.reset()") -> str:
    """Why compiling failed, to go behind "compiling it failed": the machine's fault or torch's where that is known, else a bug of precast.

    `reset`: the call that makes this process compile it again.
    """
    again = f" (once that is mended, {reset} or a new start of the program compiles it)"
    if isinstance(error, CompileStopped):
        return f"{again}: {error}"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" of {error.filename}" if error.filename else ""
        return f"{again}: there is no room left on the disk{where}. Free some space"
    if place := torchs_place(error):
        return f", which is a fault of torch {torch.__version__} (at {place}; PRECAST_STRICT=1 raises it): {type(error).__name__}: {error}"
    return f", which is a bug of precast (PRECAST_STRICT=1 raises it): {type(error).__name__}: {error}"


_TRACERS = ("torch._dynamo.convert_frame", "torch._dynamo.symbolic_convert", "torch._functorch._aot_autograd")


def torchs_place(error: BaseException) -> str:
    """`file:line` where torch's tracer, or its AOTAutograd, raised; empty where the error is from precast's own code, or from a library
    that precast called outside of them.
    """
    stack = [(str(frame.f_globals.get("__name__", "")), frame, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    inside = [item for item in stack if item[0].partition(".")[0] in ("torch", "precast")]
    if not inside or inside[-1][0].partition(".")[0] == "precast" or not any(name.startswith(_TRACERS) for name, _, _ in inside):
        return ""
    name, frame, line = inside[-1]
    return f"{name.replace('.', '/')}.py:{line}" if not frame.f_code.co_filename.startswith("<") else name


def strict() -> bool:
    """Whether an unexpected error while compiling is raised (PRECAST_STRICT=1) instead of running eagerly with a warning."""
    return os.environ.get("PRECAST_STRICT", "") not in ("", "0")
