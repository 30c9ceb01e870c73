"""`a is b` for tuples: the tracer follows each way to a tuple as a tuple of its own, and answers that they are two."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from precast.capture.adapters.variables import ConstantVariable
from precast.capture.common.patching import patched


@contextlib.contextmanager
def tuples_are_themselves(module: Any, held: Mapping[Any, Any], asked: dict[Any, None]) -> Iterator[None]:
    """While it lasts, tuples that were there before the call are one where they are. `module`: the one of torch's that compares; `held`:
    source -> tuple or None; `asked` gets the sources of those whose identity decided something.
    """
    original: Any = module.vt_identity_compare

    def vt_identity_compare(left: Any, right: Any) -> Any:
        one, other = (held.get(getattr(variable, "source", None)) for variable in (left, right))
        if one is None or other is None:
            return original(left, right)
        asked[left.source] = asked[right.source] = None
        return ConstantVariable.create(one is other)

    with patched(module, "vt_identity_compare", vt_identity_compare):
        yield


__all__ = ["tuples_are_themselves"]
