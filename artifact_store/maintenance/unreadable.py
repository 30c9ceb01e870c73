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
    """Every regular file is opened once and not asked anything else: a store has tens of thousands."""

    def name(path: str) -> str:
        return layout.printable(os.path.relpath(path, store.root))

    places = [os.path.join(store.root, folder)]
    while places:
        try:
            with os.scandir(places.pop()) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield name(str(error.filename)), error.strerror or str(error)
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                try:
                    os.close(os.open(entry.path, _LOOK))
                    continue
                except OSError:
                    reason = _obstacle(entry.path)
            elif entry.is_symlink() and os.path.isdir(entry.path):
                reason = "a link to a folder, which is not followed"
            elif entry.is_dir(follow_symlinks=False):
                places.append(entry.path)
                due = entry.name.endswith(layout.MANIFEST_SUFFIX) or layout.is_digest(entry.name)
                reason = "a folder where a file is due" if due else ""
            else:
                reason = _obstacle(entry.path)
            if reason:
                yield name(entry.path), reason


_LOOK = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""A pipe would wait for its writer."""


def _obstacle(path: str) -> str:
    try:
        descriptor = os.open(path, _LOOK)
        try:
            return "" if stat.S_ISREG(os.fstat(descriptor).st_mode) else "not a file but a pipe or a device"
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return "a link to what is not there" if os.path.islink(path) else ""
    except OSError as error:
        return error.strerror or str(error)


__all__ = ["unreadable"]
