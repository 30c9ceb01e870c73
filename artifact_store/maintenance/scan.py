"""Looking through a store's folder once: file by file, with as few questions to the file system as it takes.

A store of 10,000 artifacts has 33,000 files. A path object and a `stat` for each, three times over, is most of what a command on it would
take; an entry of `os.scandir` knows already whether it is a file.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from precast.artifact_store.format import layout
from precast.artifact_store.store import Store

log = logging.getLogger("precast.store")


class Seen(NamedTuple):
    """One manifest's file, unread. `modified` in nanoseconds since 1970."""

    program_key: str
    artifact_id: str
    size: int
    modified: int

    @property
    def name(self) -> str:
        return f"{layout.PROGRAMS}/{self.program_key}/{self.artifact_id}{layout.MANIFEST_SUFFIX}"

    @property
    def stamp(self) -> str:
        """What changes whenever the content does."""
        return f"{self.size}-{self.modified}"


def manifest_files(store: Store) -> list[Seen]:
    """All files that are manifests by their names, by program and id. Links to folders of programs are not followed."""
    found: list[Seen] = []
    if store.problem:
        return found
    for folder in _listed(store.path(layout.PROGRAMS)):
        if folder.is_dir(follow_symlinks=False) and layout.is_label(folder.name):
            for file in _listed(folder.path):
                artifact_id = file.name.removesuffix(layout.MANIFEST_SUFFIX)
                if artifact_id is not file.name and layout.is_digest(artifact_id) and (seen := status(file)) is not None:
                    found.append(Seen(folder.name, artifact_id, seen.st_size, seen.st_mtime_ns))
    return found


def walk(folder: str | os.PathLike[str]) -> Iterator[os.DirEntry[str]]:
    """All regular files under `folder`, in order, links to files among them; links to folders are not followed. What cannot be looked at
    may be a file; a folder that cannot be listed has none.
    """
    for entry in _listed(folder, quiet=True):
        if entry.is_file(follow_symlinks=False):
            yield entry
        elif entry.is_dir(follow_symlinks=False):
            yield from walk(entry.path)
        elif entry.is_symlink() and _may_be_file(entry):
            yield entry


def files(folder: str | os.PathLike[str]) -> list[Path]:
    """The same as paths; none where the folder does not exist."""
    return [Path(entry.path) for entry in walk(folder)]


def size_of(folder: str | os.PathLike[str]) -> int:
    """Bytes of all files under it."""
    return sum(seen.st_size for entry in walk(folder) if (seen := status(entry)) is not None)


def top(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """The files directly in a folder."""
    return [entry for entry in _listed(folder, quiet=True) if entry.is_file(follow_symlinks=False)]


def status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """When it was made, how large it is, …; None where that cannot be seen."""
    try:
        return entry.stat()
    except OSError:
        return None


def _may_be_file(link: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISREG(link.stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # whoever reads it will hear why not


def _listed(folder: str | os.PathLike[str], quiet: bool = False) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        pass
    except OSError as error:
        if not quiet:
            log.info("%s: miss: cannot list the folder (%s)", folder, error.strerror or error)
    return []
