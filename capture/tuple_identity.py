"""`a is b` for tuples: the tracer follows each way to a tuple as a tuple of its own, and answers that they are two."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch._dynamo.variables.constant import ConstantVariable

from precast.capture.patching import patched


@contextlib.contextmanager
def tuples_are_themselves(held: Mapping[Any, Any], asked: dict[Any, None]) -> Iterator[None]:
    """While it lasts, tuples that were there before the call are one where they are. `held`: source -> tuple or None; `asked` gets the
    sources of those whose identity decided something.
    """
    modules = [importlib.import_module(f"torch._dynamo.variables.{name}") for name in ("builtin",)]
    with contextlib.suppress(ModuleNotFoundError):
        modules.append(importlib.import_module("torch._dynamo.variables.object_protocol"))
    modules = [module for module in modules if hasattr(module, "vt_identity_compare")]
    if not modules:  # before torch 2.13
        yield
        return
    original: Any = modules[0].vt_identity_compare

    def vt_identity_compare(left: Any, right: Any) -> Any:
        one, other = (held.get(getattr(variable, "source", None)) for variable in (left, right))
        if one is None or other is None:
            return original(left, right)
        asked[left.source] = asked[right.source] = None
        return ConstantVariable.create(one is other)

    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(patched(module, "vt_identity_compare", vt_identity_compare))
        yield


__all__ = ["tuples_are_themselves"]
