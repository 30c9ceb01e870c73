"""OpenTelemetry spans of what takes long: compile, load, fetch, upload. Imported only where PRECAST_OTEL is on."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

log = logging.getLogger("precast.store")
ENVIRONMENT = "PRECAST_OTEL"


@functools.cache
def _tracer() -> Any:
    """OpenTelemetry's; None where it is not installed, which is said once: calls go on without spans."""
    try:
        from opentelemetry import trace
    except ImportError:
        log.warning("%s asks for spans, and OpenTelemetry is not installed: pip install 'precast[otel]'; going on without", ENVIRONMENT)
        return None
    return trace.get_tracer("precast")


@contextmanager
def span(name: str, **attributes: str | int | float | bool) -> Iterator[Any]:
    """A context that is a span `precast.<name>`, a child of the caller's; an exception within is recorded."""
    if (tracer := _tracer()) is None:
        yield None
        return
    marked = {f"precast.{key}": value for key, value in attributes.items()}
    with tracer.start_as_current_span(f"precast.{name}", attributes=marked) as current:
        yield current


def span_if_wanted(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[Any]:
    """The same where PRECAST_OTEL asks for spans; else nothing. For threads of remotes, which are never on the warm path."""
    return span(name, **attributes) if os.environ.get(ENVIRONMENT, "") not in ("", "0") else nullcontext()


__all__ = ["ENVIRONMENT", "span", "span_if_wanted"]
