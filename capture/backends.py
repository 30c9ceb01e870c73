"""torch's registry of backends: what names there are, and the callable behind one. The runtime imports this by name, when it is needed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from precast.capture.adapters.dynamo import exc, registry
from precast.capture.adapters.guards import TracingContext
from precast.capture.common.captured_frame import CaptureRefused
from precast.runtime.common.errors import BackendError

CompilerFunction = Callable[..., Callable[..., Any]]
"""(GraphModule, example inputs) -> a callable with the graph's inputs that returns a sequence with its outputs."""


def names(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """Names that torch knows, entry points of installed packages included."""
    return list(registry.list_backends(tuple(exclude_tags)))


def callable_backend(
    backend: str | CompilerFunction, mode: str | None, options: Mapping[str, Any] | None, dynamic: bool | None
) -> CompilerFunction:
    """The backend with its mode and options applied, as torch.compile applies them.

    Raises LookupError for a name that torch does not know, ValueError for a mode or options that Inductor does not know.
    """
    try:
        if backend == "inductor":
            _check_inductor_options(options or {})
            wrapped: CompilerFunction = torch._TorchCompileInductorWrapper(mode, options, dynamic)  # type: ignore[no-untyped-call]
        else:
            wrapped = torch._TorchCompileWrapper(backend, mode, options, dynamic)  # type: ignore[no-untyped-call]
    except exc.InvalidBackend as error:
        raise LookupError(str(error)) from error
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    return wrapped


def _check_inductor_options(options: Mapping[str, Any]) -> None:
    from torch._inductor import list_options  # seldom wanted, and a second of imports

    known = list_options()
    for name in options:
        if name.replace("-", "_") not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise ValueError(f"unknown option {name!r}{f'; did you mean {close[0]!r}?' if close else ''}")


def run_backend(backend: CompilerFunction, gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """What the backend makes of the graph. Must run inside Dynamo's backend callback. Raises CaptureRefused."""
    try:
        compiled = backend(gm, example_inputs)
    except exc.TorchDynamoException:
        raise  # how backends ask the tracer to start again
    except Exception as error:
        name = getattr(backend, "compiler_name", "backend")
        raise BackendError(f"the backend {name!r} failed: {type(error).__name__}: {error}") from error
    context = TracingContext.try_get()
    if context is not None and context.guards_context.aotautograd_guards:
        raise CaptureRefused("two inputs share memory and the traced code writes one of them")
    if not callable(compiled):
        raise CaptureRefused(f"the backend returned a {type(compiled).__name__}, and not a callable")
    return compiled


__all__ = ["callable_backend", "names", "run_backend"]
