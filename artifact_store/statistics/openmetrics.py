"""Figures as OpenMetrics text (version 1.0), which Prometheus and its kin read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from precast.artifact_store.statistics.series import FIGURES, Series

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_LABELS = ("tier", "reason", "detail", "outcome")


def metrics_text(sums: Mapping[Series, float], names: Mapping[str, str], gauges: Iterable[tuple[str, str, str, float]] = ()) -> str:
    """The counters of `sums`, each with its program's name and key, tier, reason, detail and outcome as far as it has them.

    `gauges`: further figures as (name, unit, help, value). The text ends in `# EOF`.
    """
    families: dict[str, list[tuple[Series, float]]] = defaultdict(list)
    for series, value in sums.items():
        if series.figure in FIGURES:
            families[series.figure].append((series, value))
    lines: list[str] = []
    for figure, described in FIGURES.items():
        if figure in families:
            name = f"precast_{figure}"
            lines += _head(name, "counter", described.unit, described.help)
            lines += [f"{name}_total{_labels(series, names)} {_value(value)}" for series, value in sorted(families[figure])]
    for name, unit, described_as, value in gauges:
        lines += [*_head(f"precast_{name}", "gauge", unit, described_as), f"precast_{name} {_value(value)}"]
    return "\n".join([*lines, "# EOF", ""])


def _head(name: str, kind: str, unit: str, text: str) -> list[str]:
    return [f"# TYPE {name} {kind}", *([f"# UNIT {name} {unit}"] if unit else []), f"# HELP {name} {_escaped(text)}"]


def _labels(series: Series, names: Mapping[str, str]) -> str:
    pairs = [("program", names.get(series.program, series.program)), ("key", series.program)] if series.program else []
    pairs += [(label, value) for label in _LABELS if (value := getattr(series, label))]
    return "{" + ",".join(f'{label}="{_escaped(value)}"' for label, value in pairs) + "}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _value(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(round(float(value), 6))


__all__ = ["CONTENT_TYPE", "metrics_text"]
