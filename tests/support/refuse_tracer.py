"""Refusing the tracer to precast's own frames, in a process that serves from the store. Needs nothing but the standard library."""

from __future__ import annotations

import builtins
import importlib
import sys
from typing import Any

REFUSED = ("torch._dynamo", "torch._inductor", "sympy", "triton", "precast.capture", "precast.lowering", "precast.codegen")


def refuse_tracer() -> list[str]:
    """From now on an import of the tracer or the compiler by any module of precast fails; the list collects the attempts.

    Libraries may import it for themselves (transformers does), so who asks decides: `builtins.__import__` carries the importer's
    globals, and for `importlib.import_module` the calling frame tells.
    """
    attempts: list[str] = []
    plain_import, plain_module = builtins.__import__, importlib.import_module

    def check(wanted: str, importer: str) -> None:
        if importer.split(".")[0] == "precast" and wanted.startswith(REFUSED):
            attempts.append(f"{importer} imports {wanted}")
            raise AssertionError(f"{importer} imports {wanted} on the warm path")

    def guarded_import(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        importer = str((globals or {}).get("__name__", ""))
        for part in [name, *(f"{name}.{item}" for item in fromlist or ())]:
            check(part, importer)
        return plain_import(name, globals, locals, fromlist, level)

    def guarded_module(name: str, package: str | None = None) -> Any:
        check(name, str(sys._getframe(1).f_globals.get("__name__", "")))
        return plain_module(name, package)

    builtins.__import__ = guarded_import
    importlib.import_module = guarded_module
    return attempts
