"""What other objects Dynamo puts into a module's globals for its bytecode, as supplies of a FrameRecord."""

from __future__ import annotations

import random
from typing import Any

from precast.artifact_store.constants import Untaggable, object_name, tag


def installed(name: str, value: Any) -> tuple[Any, ...]:
    """("random", calls): draws from Python's generator, replayed in order; ("object", "module:qualname"): something importable.

    ("unknown", name) otherwise: a frame whose bytecode reads such a name cannot be kept.
    """
    if name.startswith("__gen_rand_values"):
        draws = _draws(value)
        return ("unknown", name) if draws is None else ("random", draws)
    try:
        return ("object", object_name(value))
    except Untaggable:
        return ("unknown", name)


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


__all__ = ["installed"]
