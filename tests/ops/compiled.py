"""precast.compile for tests of agreement with eager: to run eagerly would agree for nothing, so here it is an error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import precast


def compiled(fn: Callable[..., Any], store: str | Path, name: str | None = None, dynamic: bool | None = None) -> Callable[..., Any]:
    """`fn` as one compiled graph. A call raises `precast.PrecastError` where precast refuses it or warns that it runs eagerly."""
    options = {"accumulated_recompile_limit": 1 << 30, "isolate_recompiles": True}
    function = precast.compile(fn, store=str(store), fullgraph=True, name=name, dynamic=dynamic, options=options)

    def call(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = function(*args, **kwargs)
        remarks = [str(w.message) for w in caught if str(w.message).startswith("precast:")]
        if remarks:
            raise precast.PrecastError(remarks[0])
        return result

    return call
