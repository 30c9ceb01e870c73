"""Use of artifacts, recorded on the warm path: one appended line, no database. The index folds the lines in when it is next opened."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import time
from collections.abc import Collection
from pathlib import Path

from precast.artifact_store.format import layout
from precast.artifact_store.tiers.folder import read_file
from precast.artifact_store.tiers.owner import create, make_folder

log = logging.getLogger("precast.store")
JOURNAL = "uses"
BEGAN = "began"
"""A file in `index/` that says since when uses are known there: it is written where the folder was lost, or left behind by a copy."""
ELSEWHERE = "PRECAST_USES_DIR"
"""The environment variable with the folder in which uses are noted instead, in a file for each machine."""
SUFFIX = ".uses"
MOST_ELSEWHERE = 64 << 20
"""Bytes of such a file: 880,000 uses."""
LIMIT = 4 << 20
"""Bytes. A start writes 76 of them an artifact; past 55,000 uses without any `precast` command the rest go uncounted."""


def note(root: Path, artifact_id: str) -> None:
    """Append one use. Silent where the folder cannot be written: a read-only store simply counts nothing."""
    line = f"{artifact_id} {int(time.time())}\n".encode()
    try:
        descriptor = _open(root, f"{root}/index/{JOURNAL}")
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_size < LIMIT:
            os.write(descriptor, line)
    except OSError:
        return
    finally:
        os.close(descriptor)


def note_elsewhere(folder: str, artifact_id: str) -> None:
    """Append one use to this machine's file in `folder`, which may be shared by machines. Where that fails nothing is counted."""
    line = f"{artifact_id} {int(time.time())}\n".encode()
    path = f"{folder}/{machine_name()}{SUFFIX}"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < MOST_ELSEWHERE:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as error:
        log.info("%s: a use is not counted: %s", path, error.strerror or error)


def machine_name() -> str:
    """This machine, as files and remotes that hold its uses are named."""
    return re.sub(r"[^A-Za-z0-9_.+-]", "-", os.uname().nodename).lstrip(".-+")[:100] or "machine"


def _open(root: Path, path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
    with contextlib.suppress(FileNotFoundError):
        return os.open(path, flags)
    make_index(root)
    try:
        return create(root, path, flags, 0o600)
    except FileExistsError:  # another process was quicker
        return os.open(path, flags)


def make_index(root: Path) -> None:
    """Make the folder of the index where a store was copied without it, or lost it: earlier uses are not known. Raises OSError."""
    if make_folder(root, root / "index"):
        begin(root)


def begin(root: Path) -> None:
    """Note that uses before this moment are not known. Raises OSError."""
    path = root / "index" / BEGAN
    path.unlink(missing_ok=True)
    with open(create(root, str(path), os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        file.write(f"{int(time.time())}\n")


def began(root: Path) -> float:
    """Since when uses are known, in unix seconds: 0 where that is ever since the store was made. Raises OSError."""
    if not (root / "index").is_dir():
        return time.time()
    try:
        text = read_file(root / "index" / BEGAN).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return 0.0
    return float(text) if text.isdigit() and len(text) < 12 else time.time()


def full(root: Path) -> bool:
    """Whether the journal takes no more, so that not all uses are in it. Raises OSError."""
    try:
        return (root / "index" / JOURNAL).stat().st_size >= LIMIT
    except FileNotFoundError:
        return False


def set_aside(root: Path) -> None:
    """Take what was recorded until now out of the journal, for a database that keeps it from now on. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(root / "index" / JOURNAL, root / "index" / f"{JOURNAL}.{secrets.token_hex(4)}")


def recorded(root: Path, but: Collection[str] = ()) -> dict[str, list[tuple[str, int]]]:
    """All recorded uses as `(artifact id, unix time)`, by the file that they are in. Raises OSError where one cannot be read.

    `but`: files that are left out. So are lines that are not well-formed (torn by a crash).
    """
    found: dict[str, list[tuple[str, int]]] = {}
    try:
        names = sorted(name for name in os.listdir(root / "index") if name == JOURNAL or name.startswith(f"{JOURNAL}."))
    except FileNotFoundError:
        return found
    for name in names:
        if name not in but:
            with contextlib.suppress(FileNotFoundError):
                found[name] = lines(read_file(root / "index" / name))
    return found


def lines(data: bytes) -> list[tuple[str, int]]:
    """Uses as they are noted, artifact and moment; lines that are not well-formed are left out."""
    parts = (line.partition(" ") for line in data.decode("ascii", "replace").splitlines())
    return [(name, int(stamp)) for name, _, stamp in parts if layout.is_digest(name) and stamp.isdigit() and len(stamp) < 12]
