"""What of a store this user, or this disk, does not let be read: no damage, and nothing to set aside or to count as unneeded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from precast.artifact_store import layout
from precast.artifact_store.store import Store


def unreadable(store: Store, folders: Iterable[str] = layout.SHARED_FOLDERS) -> dict[str, str]:
    """Folders and files that cannot be read, by name, each with the system's reason. What is gone in the meantime is not among them."""
    return {name: reason for folder in folders for name, reason in _within(store, folder)}


def _within(store: Store, folder: str) -> Iterator[tuple[str, str]]:
    failed: list[OSError] = []
    for place, _, names in os.walk(store.root / folder, onerror=failed.append):
        for name in names:
            path = os.path.join(place, name)
            if reason := _obstacle(path):
                yield os.path.relpath(path, store.root), reason
    for closed in failed:
        if not isinstance(closed, FileNotFoundError):
            yield os.path.relpath(closed.filename, store.root), closed.strerror or str(closed)


def _obstacle(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        try:
            return "" if stat.S_ISREG(os.fstat(descriptor).st_mode) else "not a file but a pipe or a device"
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)


__all__ = ["unreadable"]
