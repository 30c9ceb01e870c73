"""Removing everything that a store holds."""

from __future__ import annotations

import shutil
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.maintenance.scan import size_of
from precast.artifact_store.remote.spool import SPOOL


def is_store(root: Path) -> bool:
    """Whether the folder is a store. Raises StoreError where something else is there."""
    if root.exists() and not root.is_dir():
        raise StoreError(f"{root} is not a precast store but a file; nothing was removed")
    if (root / layout.FORMAT_FILE).exists():
        return True
    if root.exists() and any(root.iterdir()):
        raise StoreError(f"{root} is not a precast store (no file 'format' in it); nothing was removed")
    return False


def size_on_disk(root: Path) -> int:
    """Bytes of all files in the folder."""
    return size_of(root)


def clean(root: Path) -> None:
    """Remove all that a store has, with pins, statistics and what is still to be sent. Raises StoreError where some of it stays."""
    local = (SPOOL, *layout.LOCAL_FOLDERS, layout.STATISTICS)
    for folder in (layout.PROGRAMS, layout.OBJECTS, *layout.RECORD_KINDS, layout.PINS, *local):  # manifests first: no reader sees half
        shutil.rmtree(root / folder, ignore_errors=True)
    left = [folder for folder in (*layout.SHARED_FOLDERS, *local) if (root / folder).exists()]
    if left:
        raise StoreError(f"{root}: could not remove {', '.join(left)}; check the permissions")
