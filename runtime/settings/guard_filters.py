"""Guard filters: which guards a compiled frame need not check. torch's six, and what identifies a filter in keys."""

from __future__ import annotations

import functools
import hashlib
import importlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch.compiler
from torch.compiler import (
    keep_tensor_guards_unsafe,
    skip_guard_on_all_nn_modules_unsafe,
    skip_guard_on_globals_unsafe,
    skip_guard_on_inbuilt_nn_modules_unsafe,
)

from precast.artifact_store.format.import_names import Untaggable
from precast.artifact_store.format.tagged_constants import tag
from precast.runtime.common.errors import OptionError
from precast.runtime.fingerprint.bytecode import digest


def _all_waived(entries: Sequence[Any]) -> list[bool]:
    return [False] * len(entries)


def _portable_kept(entries: Sequence[Any]) -> list[bool]:
    return [
        entry.guard_type in ("GLOBAL_STATE", "SHAPE_ENV") or (entry.guard_type == "TENSOR_MATCH" and not entry.is_global)
        for entry in entries
    ]


skip_all_guards_unsafe: Callable[..., Any] = getattr(torch.compiler, "skip_all_guards_unsafe", _all_waived)
keep_portable_guards_unsafe: Callable[..., Any] = getattr(torch.compiler, "keep_portable_guards_unsafe", _portable_kept)


def content(function: Callable[..., Any]) -> str:
    """`module:qualname#digest`: equal in two processes exactly where the filter is the same code over the same captured values.

    Raises OptionError for what has no such content: an object with state, a closure over something that is no constant.
    """
    bound: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        bound, keywords, function = (*function.args, *bound), {**function.keywords, **keywords}, function.func
    if not isinstance(function, types.FunctionType):
        raise OptionError(f"guard_filter_fn {function!r} is not a Python function, and so cannot be part of a key: give a function")
    try:
        held = [tag(cell.cell_contents) for cell in function.__closure__ or ()]
        held += [tag(value) for value in (*(function.__defaults__ or ()), function.__kwdefaults__ or {}, bound, keywords)]
    except (Untaggable, ValueError) as error:
        raise OptionError(f"guard_filter_fn {function.__qualname__} captures what cannot be part of a key: {error}") from error
    text = f"{digest(function.__code__)} {held!r}"
    return f"{function.__module__}:{function.__qualname__}#{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def find(name: str) -> Callable[..., Any]:
    """The filter called `module:qualname`, imported; one of torch's by its bare name. Raises OptionError."""
    module, _, qualname = name.rpartition(":")
    try:
        found: Any = importlib.import_module(module or __name__)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"guard_filter_fn {name!r} cannot be found ({error}): write 'package.module:function'") from error
    if not callable(found):
        raise OptionError(f"guard_filter_fn {name!r} is not callable")
    return found  # type: ignore[no-any-return]


__all__ = [
    "content",
    "find",
    "keep_portable_guards_unsafe",
    "keep_tensor_guards_unsafe",
    "skip_all_guards_unsafe",
    "skip_guard_on_all_nn_modules_unsafe",
    "skip_guard_on_globals_unsafe",
    "skip_guard_on_inbuilt_nn_modules_unsafe",
]
