"""What the runtime reaches above itself, by name: imports point the other way, and most processes never need any of this.

Each row is imported when what its `when` says happens, and not before: a warm process imports none.
"""

from __future__ import annotations

import functools
import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False, repr=False)
class UpwardImport:
    """`name`: "module" or "module:attribute"; `when`: what happens when it is imported."""

    name: str
    when: str

    def load(self) -> Any:
        """The module, or what the module holds under the attribute."""
        return load(self.name)


def load(name: str) -> Any:
    """What "module" or "module:attribute" names."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


COMPILE_VARIANT = UpwardImport("precast.compiling.driver:compile_variant", "a call misses and is compiled, or a worker that builds starts")
COMPILE_GRAPH = UpwardImport("precast.compiling.compile_graph:compile_graph", 'torch.compile(backend="precast") misses')
COMPILE_UPDATE = UpwardImport("precast.compiling.compile_update:compile_update", "the step of an optimiser misses")
EXPLAIN_CALL = UpwardImport("precast.compiling.explain_graphs:explain_call", "what precast.explain returned is called")
STAND_INS = UpwardImport("precast.fake_device_hook:stand_ins", "precompile is asked for a GPU target")
BACKENDS = UpwardImport("precast.capture.backends", "a backend other than precast's is asked for, or backends are listed")
WRITE_COUNTS = UpwardImport("precast.runtime.counting.write_counts:write", "what a process counted is written")
SPAN = UpwardImport("precast.artifact_store.statistics.spans:span", "PRECAST_OTEL asks for spans")


@functools.cache
def _span() -> Any:
    return SPAN.load() if os.environ.get("PRECAST_OTEL", "") not in ("", "0") else None


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[Any]:
    """A span of OpenTelemetry around what takes long, where PRECAST_OTEL asks for them; else nothing."""
    make = _span()
    return nullcontext() if make is None else make(name, **attributes)


__all__ = [
    "BACKENDS",
    "COMPILE_GRAPH",
    "COMPILE_UPDATE",
    "COMPILE_VARIANT",
    "EXPLAIN_CALL",
    "SPAN",
    "STAND_INS",
    "WRITE_COUNTS",
    "UpwardImport",
    "load",
    "span",
]
