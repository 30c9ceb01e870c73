"""Calls of functions marked by `assume_constant_result`, noted while a frame is traced: their results are in its code as constants."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from precast.artifact_store.format.import_names import Untaggable
from precast.artifact_store.format.records import CodeDigest
from precast.capture.adapters.variables import functions, nn_module
from precast.capture.common.patching import patched
from precast.runtime.fingerprint.assumed_constants import call_name, result_digest

ConstantCall = tuple[Any, tuple[Any, ...], dict[str, Any], Any]
"""Function, arguments, keywords, result."""


@contextlib.contextmanager
def recorded_constants(calls: list[ConstantCall]) -> Iterator[None]:
    """Notes into `calls` what is called and what it returns."""
    original = functions.invoke_and_store_as_constant

    def invoke(tx: Any, fn: Any, name: str, args: Any, kwargs: Any) -> Any:
        def noting(*values: Any, **named: Any) -> Any:
            result = fn(*values, **named)
            calls.append((fn, values, named, result))
            return result

        return original(tx, noting, name, args, kwargs)

    with (
        patched(functions, "invoke_and_store_as_constant", invoke),
        patched(nn_module, "invoke_and_store_as_constant", invoke),
    ):
        yield


def constant_digests(calls: Iterable[ConstantCall]) -> tuple[tuple[CodeDigest, ...], tuple[str, ...]]:
    """One record per call, and reasons for those that another process could not repeat."""
    found: dict[CodeDigest, None] = {}
    problems: list[str] = []
    for function, args, kwargs, result in calls:
        try:
            found[CodeDigest(*call_name(function, args, kwargs), result_digest(result))] = None
        except Untaggable as error:
            name = getattr(function, "__qualname__", repr(function))
            problems.append(f"the result of {name}, taken as constant, cannot be compared in another process: {error}")
    return tuple(found), tuple(dict.fromkeys(problems))


__all__ = ["ConstantCall", "constant_digests", "recorded_constants"]
