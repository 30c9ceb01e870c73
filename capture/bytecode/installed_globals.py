"""Globals that Dynamo installs for its bytecode, as supplies of a FrameRecord: how another process gets their values."""

from __future__ import annotations

import random
import types
from collections.abc import Mapping
from typing import Any

from precast.artifact_store.format.import_names import Untaggable, object_name
from precast.artifact_store.format.tagged_constants import tag
from precast.capture.adapters.dynamo import OutputGraph


def private_names(namespace: Mapping[str, Any], output: OutputGraph) -> dict[str, tuple[Any, ...]]:
    """Every global name that Dynamo installed -> its supply."""
    found: dict[str, tuple[Any, ...]] = {alias: _module(name) for alias, name in output.import_sources.items()}
    return found | {name: _supply(name, namespace.get(name)) for name in output.installed_globals if name not in found}


def _supply(name: str, value: Any) -> tuple[Any, ...]:
    """("scope", id): the namespace of code that was made by `exec` (namedtuple methods, for one); only guards may refer to it.

    ("random", calls): draws from Python's generator, replayed in order; ("object", "module:qualname"): something importable.
    ("unknown", name) otherwise: a frame whose bytecode reads such a name cannot be kept.
    """
    if name.startswith("__builtins_dict__"):
        return ("builtins",)
    if name.startswith("__compiled_fn_"):
        return ("graph",)
    if name.startswith("___unnamed_scope"):
        return ("scope", id(value))
    if isinstance(value, types.ModuleType):
        return _module(value.__name__)
    if name.startswith("__gen_rand_values"):
        draws = _draws(value)
        return ("unknown", name) if draws is None else ("random", draws)
    try:
        return ("object", object_name(value))
    except Untaggable:
        return ("unknown", name)


def _module(name: str) -> tuple[Any, ...]:
    return ("shims" if name.startswith("torch._dynamo") else "module", name)


def _draws(function: Any) -> tuple[Any, ...] | None:
    """(name in `random`, tagged arguments, tagged keywords) per draw; None where one is not from the global generator."""
    function = getattr(function, "_torchdynamo_orig_callable", function)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    draws = []
    for drawn, args, kwargs in cells["random_calls"].cell_contents:
        called = getattr(drawn, "__name__", "")
        if getattr(random, called, None) != drawn:
            return None
        try:
            draws.append((called, tag(tuple(args)), tag(dict(kwargs))))
        except Untaggable:
            return None
    return tuple(draws)


__all__ = ["private_names"]
