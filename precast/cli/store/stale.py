"""Artifacts that what is installed here cannot use: why one is, and a line about all of a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from precast.artifact_store import Versions
from precast.artifact_store.format.text import many


def why_stale(versions: Versions) -> str:
    """Why what is installed here cannot use an artifact of these versions; "" when it can."""
    from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor

    if versions.lowering != LOWERING_VERSION:
        return f"made by lowering {versions.lowering}, and this precast has {LOWERING_VERSION}"
    if versions.torch != torch_minor():
        return f"made for torch {versions.torch}, and {torch_minor()} is installed"
    if versions.python is not None and versions.python != python_minor():
        return f"holds bytecode of Python {versions.python}, and this is {python_minor()}"
    return ""


def about_stale(found: Iterable[Versions]) -> str:
    """How many artifacts of these versions are of no use here, and why; "" where all are of use. They miss, and harm nobody."""
    reasons = Counter(filter(None, map(why_stale, found)))
    said = "; ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"{many(reasons.total(), 'artifact')} for other versions than those here: {said}" if said else ""


__all__ = ["about_stale", "why_stale"]
