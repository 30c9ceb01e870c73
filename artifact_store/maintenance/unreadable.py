"""What of a store this user, or this disk, does not let be read: no damage, and nothing to set aside or to count as unneeded."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from precast.artifact_store.format import layout
from precast.artifact_store.store import Store


def unreadable(store: Store, folders: Iterable[str] = layout.SHARED_FOLDERS) -> dict[str, str]:
    """Folders and files that cannot be read, by name, each with the system's reason. What is gone in the meantime is not among them."""
    return {name: reason for folder in folders for name, reason in _within(store, folder)}


def _within(store: Store, folder: str) -> Iterator[tuple[str, str]]:
    failed: list[OSError] = []

    def name(path: str) -> str:
        return layout.printable(os.path.relpath(path, store.root))

    for place, folders, names in os.walk(store.root / folder, onerror=failed.append):
        for path in (os.path.join(place, inner) for inner in folders):
            if os.path.islink(path):
                yield name(path), "a link to a folder, which is not followed"
            elif path.endswith(layout.MANIFEST_SUFFIX) or layout.is_digest(os.path.basename(path)):
                yield name(path), "a folder where a file is due"
        for path in (os.path.join(place, inner) for inner in names):
            if reason := _obstacle(path):
                yield name(path), reason
    for closed in failed:
        if not isinstance(closed, FileNotFoundError):
            yield name(closed.filename), closed.strerror or str(closed)


def _obstacle(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for its writer
        try:
            return "" if stat.S_ISREG(os.fstat(descriptor).st_mode) else "not a file but a pipe or a device"
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return "a link to what is not there" if os.path.islink(path) else ""
    except OSError as error:
        return error.strerror or str(error)


__all__ = ["unreadable"]
