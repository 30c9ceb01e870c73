"""Results of functions marked by `assume_constant_result`: what they returned while tracing is compared, once per process, with now."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
from collections.abc import Mapping
from typing import Any

from precast.artifact_store.format.import_names import Untaggable, find_object
from precast.artifact_store.format.tagged_constants import tag, untag

CONSTANT = "constant "
"""The prefix, in the name of a manifest's digest, that says it is of such a call; the function's name and encoded arguments follow."""


def call_name(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str, str]:
    """(module, rest) of the name of a call. Raises Untaggable where the function has no name or an argument is no constant."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or "<" in qualname:
        raise Untaggable(f"{qualname or function!r} cannot be found by name")
    arguments = repr((tuple(map(tag, args)), tuple(sorted((key, tag(value)) for key, value in kwargs.items()))))
    return f"{CONSTANT}{module}", f"{qualname} {arguments.encode().hex()}"


def result_digest(result: Any) -> str:
    """Hex digest of a constant. Raises Untaggable where the value is no constant."""
    return hashlib.sha256(repr(tag(result)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def changed_result(module: str, rest: str, wanted: str) -> str:
    """Why the function's result is not the recorded one; "" where it is. Calls the function, once per process."""
    qualname, _, arguments = rest.partition(" ")
    found = (_result_now if module in _OF_GROUPS else _result)(module, qualname, arguments)
    return (
        "" if found == wanted else f"{qualname} of {module}, whose result was taken as constant, {found or 'returns something else here'}"
    )


def _result_now(module: str, qualname: str, arguments: str) -> str:
    """The digest of the call's result, or the reason why there is none."""
    try:
        importlib.import_module(module)
        function = find_object(f"{module}:{qualname}")
        if module not in _OF_GROUPS and not getattr(function, "_dynamo_marked_constant", False):
            return "is not marked by assume_constant_result here"
        args, kwargs = ast.literal_eval(bytes.fromhex(arguments).decode())
        return result_digest(function(*map(untag, args), **{key: untag(value) for key, value in kwargs}))
    except Exception as error:  # noqa: BLE001 - the user's function may raise anything: then the artifact is of no use here
        return f"fails here ({type(error).__name__}: {error})"


_result = functools.lru_cache(maxsize=1024)(_result_now)
_OF_GROUPS = ("torch.distributed.distributed_c10d",)
"""Modules whose functions answer otherwise when processes have met: they are asked each time."""


def forget() -> None:
    """Drops the results; the functions are called again when they are next needed."""
    _result.cache_clear()


__all__ = ["CONSTANT", "call_name", "changed_result", "forget", "result_digest"]
