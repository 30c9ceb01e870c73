"""OpenTelemetry spans of what takes long: compile, load, fetch, upload. Imported only where PRECAST_OTEL is on."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class SpansMissing(ImportError):
    """Spans were asked for, and OpenTelemetry is not installed."""


@functools.cache
def _tracer() -> Any:
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise SpansMissing("PRECAST_OTEL asks for spans, and OpenTelemetry is not installed: pip install 'precast[otel]'") from error
    return trace.get_tracer("precast")


@contextmanager
def span(name: str, **attributes: str | int | float | bool) -> Iterator[Any]:
    """A context that is a span `precast.<name>`, a child of the caller's; an exception within is recorded. Raises SpansMissing."""
    marked = {f"precast.{key}": value for key, value in attributes.items()}
    with _tracer().start_as_current_span(f"precast.{name}", attributes=marked) as current:
        yield current


__all__ = ["SpansMissing", "span"]
