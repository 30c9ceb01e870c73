"""Dynamo's resume functions, which continue a frame after a graph break."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from precast.capture.adapters.dynamo import TORCH_DYNAMO_RESUME_IN_PREFIX, OutputGraph


def resume_functions(output: OutputGraph, namespace: Mapping[str, Any]) -> dict[str, tuple[types.CodeType, dict[str, Any]]]:
    """Private name -> the code that resumes a frame, and the globals that it reads, of everything that this capture installed.

    Where the code has free variables, the name is bound to a factory that takes their cells and returns the function.
    """
    found: dict[str, tuple[types.CodeType, dict[str, Any]]] = {}
    for name in output.installed_globals:
        function = namespace.get(name)
        if not name.startswith("__resume_at_") or not isinstance(function, types.FunctionType):
            continue
        if function.__code__.co_name.startswith(TORCH_DYNAMO_RESUME_IN_PREFIX):
            found[name] = (function.__code__, function.__globals__)
            continue
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        found[name] = (cells["code"].cell_contents, cells["f_globals"].cell_contents)
    return found


__all__ = ["resume_functions"]
