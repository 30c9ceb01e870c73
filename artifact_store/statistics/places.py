"""Where a process writes what it counts, and where that is looked for: beside the store where that can be written, else in a sidecar."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.tiers.owner import owner

SWITCH = "PRECAST_STATS"
"""Set to 0, nothing is written."""
FOLDER = "PRECAST_STATS_DIR"
"""A folder for what processes count, whatever store they use."""


def is_off() -> bool:
    """Whether PRECAST_STATS turns statistics off."""
    return os.environ.get(SWITCH) == "0"


def chosen_folder() -> Path | None:
    """The folder that PRECAST_STATS_DIR names."""
    chosen = os.environ.get(FOLDER)
    return Path(os.path.abspath(os.path.expanduser(chosen))) if chosen else None


def state_folder(root: Path) -> Path:
    """The user's own place for what is counted of a store that cannot be written."""
    from platformdirs import user_state_path  # only where nothing else says

    return user_state_path("precast", appauthor=False) / "statistics" / hashlib.sha256(os.fsencode(root)).hexdigest()[:16]


def folder_to_write(root: Path, readonly: bool) -> tuple[Path, Path | None]:
    """The folder for what is counted of the store at `root`, and the store's root where it lies within, else None."""
    chosen = chosen_folder()
    if chosen is not None:
        return chosen, None
    whose = owner(root)
    mine = whose is not None and os.geteuid() in (whose, 0)
    if not readonly and mine and os.access(root, os.W_OK):
        return root / layout.STATISTICS, root
    return state_folder(root), None


def folders_to_read(root: Path) -> list[tuple[Path, bool]]:
    """Folders in which something may be counted of the store at `root`; whether all of it is, whatever path the process gave the store."""
    found = [(root / layout.STATISTICS, True), (state_folder(root), True)]
    chosen = chosen_folder()
    return [*found, (chosen, False)] if chosen is not None else found


__all__ = ["FOLDER", "SWITCH", "chosen_folder", "folder_to_write", "folders_to_read", "is_off", "state_folder"]
