"""Backends other than precast's own: found by name or given as a callable. Their code lives in the process that made it."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precast.runtime.common import torch_support
from precast.runtime.common.errors import OptionError
from precast.runtime.common.upward_imports import BACKENDS
from precast.runtime.settings.options import OPTIONS

CompilerFunction = Callable[..., Callable[..., Any]]
"""(GraphModule, example inputs) -> a callable with the graph's inputs that returns a sequence with its outputs."""
OWN = "precast"
_registered: dict[str, tuple[CompilerFunction, frozenset[str]]] = {}


@dataclass(frozen=True)
class Backend:
    """A backend as `precast.compile` was given it. `mode` and `options` are for the backend; `function` takes a graph and its inputs."""

    name: str
    function: CompilerFunction
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = False  # nobody expects what it makes to be stored

    @property
    def identity(self) -> str:
        """Differs from that of any other backend of this process."""
        return f"{self.name} {id(self.function)} {self.mode} {sorted(self.options.items(), key=repr)!r}"


def register_backend(compiler_fn: CompilerFunction | None = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Make `precast.compile(backend=name)` use `compiler_fn(graph_module, example_inputs) -> callable`. Also a decorator, as torch's is.

    `name`: the function's own name by default. `tags`: such as "debug", see `list_backends`. Raises OptionError when the name is taken.
    """
    if compiler_fn is None:
        return functools.partial(register_backend, name=name, tags=tags)
    if not callable(compiler_fn):
        raise OptionError(f"register_backend wants a callable of (graph_module, example_inputs), got a {type(compiler_fn).__name__}")
    chosen: str | None = name or getattr(compiler_fn, "__name__", None)
    if chosen is None:
        raise OptionError(f"{compiler_fn!r} has no name of its own: give register_backend(..., name=...)")
    if chosen == OWN or (chosen in _registered and _registered[chosen][0] is not compiler_fn):
        raise OptionError(f"the backend name {chosen!r} is taken: give another name=")
    _registered[chosen] = (compiler_fn, frozenset(tags))
    return compiler_fn


def list_backends(exclude_tags: Sequence[str] | None = ("debug", "experimental")) -> list[str]:
    """Names that `precast.compile(backend=...)` takes: its own, registered ones, and all that torch knows. Imports torch's registry."""
    excluded = frozenset(exclude_tags or ())
    own = {name for name, (_, tags) in _registered.items() if not tags & excluded}
    known = None if torch_support.unsupported() else _torch()
    return sorted({OWN, *own, *(known.names(tuple(excluded)) if known is not None else ())})


_GUARDS = ("guard_filter_fn",)
"""Options about guards, which are precast's whatever the backend; `guard_filter_fn` torch.compile keeps to itself, too."""


def make_backend(
    backend: str | CompilerFunction, mode: str | None, options: Mapping[str, Any] | None, dynamic: bool | None
) -> tuple[Backend | None, dict[str, Any]]:
    """The backend (None: precast's own) and the options that remain precast's.

    Another backend gets `mode` and every option that is not about precast's dispatch. Raises OptionError for an unknown name.
    """
    if backend == OWN:
        return None, dict(options or {})
    if not isinstance(backend, str) and not callable(backend):
        raise OptionError(f"backend= wants a name or a callable of (graph_module, example_inputs), got a {type(backend).__name__}")
    if mode is not None and options:
        raise OptionError("give either mode= or options=, not both")
    ours = {
        name: value for name, value in (options or {}).items() if name in OPTIONS and (name in _GUARDS or not OPTIONS[name].changes_key)
    }
    theirs = {name: value for name, value in (options or {}).items() if name not in ours}
    name = backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)
    if torch_support.unsupported() or (known := _torch()) is None:
        return Backend(name, _never_called, mode, theirs), ours
    found = _registered[backend][0] if isinstance(backend, str) and backend in _registered else backend
    try:
        function = known.callable_backend(found, mode, theirs or None, dynamic)
    except LookupError as error:
        raise OptionError(f"unknown backend {name!r}{_closest(name)}") from error
    except ValueError as error:
        raise OptionError(f"backend {name!r}: {error}") from error
    return Backend(name, function, mode, theirs), ours


def _closest(name: str) -> str:
    known = list_backends(())
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(list_backends())}."
    return f"{hint} A package that brings a backend has to be installed; register a function of your own with precast.register_backend"


def _torch() -> Any:
    """torch's registry is the tracer's, and so reached when a backend other than precast's is asked for, and not before. None, and the
    reason noted, where it cannot be imported.
    """
    try:
        return BACKENDS.load()
    except Exception as error:  # noqa: BLE001 - adapters name what is private to torch: another torch may lack some of it
        torch_support.note_broken(error)
        return None


def _never_called(*given: Any) -> Any:
    """The backend where nothing can be compiled."""
    raise AssertionError("no backend is called where precast compiles nothing")


__all__ = ["Backend", "CompilerFunction", "list_backends", "make_backend", "register_backend"]
