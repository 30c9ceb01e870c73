"""precast: an ahead-of-time graph compiler for PyTorch with an on-disk artifact cache.

Importing this imports neither torch nor the tracer; each name below is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.runtime.api import compile, explain_miss, load, reset
    from precast.runtime.errors import GuardMiss, OptionError, PrecastError, RecompileForbidden
    from precast.runtime.options import describe_options, list_mode_options, list_options
    from precast.runtime.precompile import precompile
    from precast.runtime.stance import set_stance

__version__ = "0.1.0"
_HOMES = {
    "compile": "api",
    "explain_miss": "api",
    "load": "api",
    "reset": "api",
    "GuardMiss": "errors",
    "OptionError": "errors",
    "PrecastError": "errors",
    "RecompileForbidden": "errors",
    "describe_options": "options",
    "list_mode_options": "options",
    "list_options": "options",
    "precompile": "precompile",
    "set_stance": "stance",
}
__all__ = [
    "GuardMiss",
    "OptionError",
    "PrecastError",
    "RecompileForbidden",
    "__version__",
    "compile",
    "describe_options",
    "explain_miss",
    "list_mode_options",
    "list_options",
    "load",
    "precompile",
    "reset",
    "set_stance",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'precast' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"precast.runtime.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
