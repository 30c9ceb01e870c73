"""Skip records in the store: programs that run as plain Python (a graph break in a loop, a `try` around one), or that cannot be stored.

With a record a warm process does not import the tracer to find that out again."""

from __future__ import annotations

import hashlib

from precast.artifact_store import Store, StoreError
from precast.runtime.common.log import logger
from precast.runtime.targets.versions import LOWERING_VERSION, python_minor, torch_minor


def _name(key: str) -> str:
    return hashlib.sha256(repr((key, LOWERING_VERSION, torch_minor(), python_minor())).encode()).hexdigest()[:40]


def remember(store: Store, key: str, reason: str, graph: bool = False) -> None:
    """Record that the program of this key runs as plain Python, and why. `graph`: it was compiled, but the result could not be stored."""
    if store.readonly:
        return
    try:
        store.put_record("skips", _name(key), {"program": key, "reason": reason, "graph": graph})
    except StoreError as error:
        logger("runtime").info("%s: that it is not compiled itself was not stored: %s", key, error)


def recall(store: Store, key: str, compiles: bool) -> str:
    """Why the program of this key runs as plain Python; "" without a record. `compiles`: this process may compile it for itself only."""
    record = store.record("skips", _name(key))
    if record is None or record.get("program") != key or (record.get("graph") and compiles):
        return ""
    reason = record.get("reason")
    return reason if isinstance(reason, str) else ""


__all__ = ["recall", "remember"]
