"""Use of artifacts, recorded on the warm path: one appended line, no database. The index folds the lines in when it is next opened."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from precast.artifact_store import layout
from precast.artifact_store.tiers import read_file

JOURNAL = "uses"
LIMIT = 4 << 20
"""Bytes. A start writes 76 of them an artifact; past 55,000 uses without any `precast` command the rest go uncounted."""


def note(root: Path, artifact_id: str) -> None:
    """Append one use. Silent where the folder cannot be written: a read-only store simply counts nothing."""
    line = f"{artifact_id} {int(time.time())}\n".encode()
    try:
        descriptor = _open(f"{root}/index/{JOURNAL}")
    except OSError:
        return
    try:
        if os.fstat(descriptor).st_size < LIMIT:
            os.write(descriptor, line)
    except OSError:
        return
    finally:
        os.close(descriptor)


def _open(path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:  # a store that was copied without its index
        os.mkdir(os.path.dirname(path), 0o700)
        return os.open(path, flags, 0o600)


def recorded(root: Path, take: bool) -> Iterator[tuple[str, int]]:
    """All recorded uses as `(artifact id, unix time)`, oldest first; lines that are not well-formed (torn by a crash) are left out.

    `take`: they are taken out, for a database that keeps them from now on.
    """
    journal = root / "index" / JOURNAL
    aside = root / "index" / f"{JOURNAL}.{secrets.token_hex(4)}"
    try:
        if take:
            os.rename(journal, aside)
        text = read_file(aside if take else journal).decode("ascii", "replace")
        if take:
            aside.unlink()
    except OSError:
        return
    for line in text.splitlines():
        artifact_id, _, stamp = line.partition(" ")
        if layout.is_digest(artifact_id) and stamp.isdigit() and len(stamp) < 12:
            yield artifact_id, int(stamp)
