"""The name of the function that torch.compile traces while its backend is called; for messages only."""

from __future__ import annotations

import functools
import inspect
import re
import types
from typing import Any

import torch

from precast.capture.adapters.dynamo import InstructionTranslator, external_utils

_WRAPPERS = {"wrapper", "wrapped", "inner", "decorate_context"}
"""What decorators call the function that they put around another."""
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)$")


def traced_function() -> str:
    """ "package.module.Net.forward" of the frame that is traced, with the line where it goes on after a graph break; empty where the tracer
    does not say.
    """
    try:
        root: Any = InstructionTranslator.current_tx().output.root_tx
        code, names, values = root.f_code, root.f_globals, root.f_locals
    except AttributeError:  # of a torch that keeps it elsewhere
        return ""
    resumed = _RESUMED.search(code.co_name)
    own = _RESUMED.sub(r"\1", code.co_qualname)
    where = f" (resumed at line {resumed[2]})" if resumed else ""
    if names.get("__name__") == external_utils.__name__ and "fn" in values:
        return name_of(values["fn"])  # torch calls what has no frame of the user's own through a function of its own
    first = _first(code, values)
    if isinstance(first, torch.nn.Module):
        method = own.rpartition(".")[2]
        return f"{_class(first)}.{method if hasattr(type(first), method) else 'forward'}{where}"
    wrapped = [value for name in code.co_freevars if isinstance(value := values.get(name), types.FunctionType)]
    if code.co_name in _WRAPPERS and len(wrapped) == 1:
        return name_of(wrapped[0])
    return f"{names.get('__name__', '')}.{own}{where}".lstrip(".")


def _first(code: types.CodeType, values: Any) -> Any:
    """The first positional argument of the frame."""
    if code.co_argcount:
        return values.get(code.co_varnames[0])
    more = values.get(code.co_varnames[code.co_kwonlyargcount]) if code.co_flags & inspect.CO_VARARGS else None
    return more[0] if isinstance(more, tuple) and more else None


def name_of(called: Any) -> str:
    """The dotted name of what is called."""
    if isinstance(called, functools.partial):
        return name_of(called.func)
    if isinstance(called, torch.nn.Module):
        return f"{_class(called)}.forward"
    if isinstance(called, types.MethodType) and not isinstance(called.__self__, type):
        return f"{_class(called.__self__)}.{called.__name__}"
    if hasattr(called, "__qualname__"):
        return f"{getattr(called, '__module__', '')}.{called.__qualname__}".lstrip(".")
    return f"{_class(called)}.__call__"


def _class(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


__all__ = ["name_of", "traced_function"]
