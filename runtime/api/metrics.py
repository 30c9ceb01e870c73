"""`precast.metrics()`: what this process has counted, as the text that a server answers at /metrics."""

from __future__ import annotations

from precast.artifact_store.statistics.openmetrics import CONTENT_TYPE, metrics_text
from precast.runtime.counting.write_counts import sums


def metrics() -> str:
    """OpenMetrics text of what this process has counted since it began: calls, misses by cause, seconds spent and saved, bytes.

    To be sent as `precast.METRICS_TYPE`. Nothing is read from a disk; `precast stats --openmetrics` adds up all processes of a store.
    """
    total, names = sums()
    return metrics_text(total, names)


METRICS_TYPE = CONTENT_TYPE
"""The media type of that text."""

__all__ = ["METRICS_TYPE", "metrics"]
