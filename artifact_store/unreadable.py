"""What of a store this user, or this disk, does not let be read: no damage, and nothing to set aside or to count as unneeded."""

from __future__ import annotations

import os
from collections.abc import Iterator

from precast.artifact_store import layout
from precast.artifact_store.store import Store


def unreadable(store: Store) -> dict[str, str]:
    """Folders and files that cannot be read, by name, each with the system's reason. What is gone in the meantime is not among them."""
    found: dict[str, str] = {}
    for folder in layout.SHARED_FOLDERS:
        for name, error in _within(store, folder):
            found[name] = error.strerror or str(error)
    return found


def _within(store: Store, folder: str) -> Iterator[tuple[str, OSError]]:
    failed: list[OSError] = []
    for place, _, names in os.walk(store.root / folder, onerror=failed.append):
        for name in names:
            path = os.path.join(place, name)
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                continue
            except OSError as error:
                yield os.path.relpath(path, store.root), error
    for closed in failed:
        if not isinstance(closed, FileNotFoundError):
            yield os.path.relpath(closed.filename, store.root), closed


__all__ = ["unreadable"]
