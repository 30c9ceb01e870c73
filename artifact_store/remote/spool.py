"""The spool: what is still to be sent to which remote, one small file for each in the local store's folder `spool/`.

A note is written before the put of an artifact returns, and removed when the remote has it: a process that dies in between leaves it to the
next process, or to `precast push`. Notes hold no content: what they name lies in the store, and pruning spares it (`pending`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX, Folder, read_file

log = logging.getLogger("precast.store")

SPOOL = "spool"
ARTIFACT = "artifact"


@dataclass(frozen=True)
class Pending:
    """One note. `remote`: its URL, without credentials; `kind`: "artifact", or of a named record; `name`: the artifact's id or the record's
    name; `program`: the key of the artifact's program; `roots`: keys of the programs that it is a part of; `repair`: what the remote has
    of it was found to be incomplete; `noted`: seconds since 1970.
    """

    remote: str
    kind: str
    name: str
    program: str = ""
    roots: tuple[str, ...] = ()
    repair: bool = False
    noted: float = 0.0

    @property
    def file(self) -> str:
        """The name of its file: one for each remote and subject, so that a second note replaces the first."""
        subject = "\0".join((self.remote, self.kind, self.program, self.name))
        return f"{hashlib.sha256(subject.encode('utf-8', 'replace')).hexdigest()[:40]}.msgpack"


def note(root: Path, pending: Pending) -> None:
    """Keep a note. Raises OSError."""
    Folder(root).put(f"{SPOOL}/{pending.file}", pack({**asdict(pending), "noted": pending.noted or time.time()}, "note"))


def done(root: Path, pending: Pending) -> None:
    """Remove a note, unless it was replaced meanwhile by one that asks for more."""
    path = root / SPOOL / pending.file
    try:
        if _read(path) == pending:
            path.unlink(missing_ok=True)
    except (OSError, DamagedRecord) as error:
        log.warning("%s: the note %s cannot be removed: %s", root, pending.file, error)


def pending(root: Path, remotes: Iterable[str] | None = None) -> list[Pending]:
    """All notes, the oldest first; those for `remotes` (URLs without credentials) where given. What is no note is logged and left alone."""
    try:
        names = sorted(name for name in os.listdir(root / SPOOL) if not name.startswith(TEMPORARY_PREFIX))
    except FileNotFoundError:
        return []
    except OSError as error:
        log.warning("%s: the notes of what is to be sent cannot be listed: %s", root, error)
        return []
    wanted = None if remotes is None else frozenset(remotes)
    found = []
    for name in names:
        try:
            item = _read(root / SPOOL / name)
        except FileNotFoundError:
            continue  # sent meanwhile
        except (OSError, DamagedRecord) as error:
            log.warning("%s: %s/%s is no note of what is to be sent: %s", root, SPOOL, name, error)
            continue
        if wanted is None or item.remote in wanted:
            found.append(item)
    return sorted(found, key=lambda item: (item.noted, item.file))


def artifacts(root: Path) -> set[str]:
    """Ids of the artifacts that are still to be sent somewhere."""
    return {item.name for item in pending(root) if item.kind == ARTIFACT}


def _read(path: Path) -> Pending:
    data = unpack(read_file(path), path.name)
    if type(data) is not dict or data.keys() != {item.name for item in fields(Pending)}:
        raise DamagedRecord("it has other fields")
    _check(all(type(data[name]) is str for name in ("remote", "kind", "name", "program")))
    _check(type(data["roots"]) is tuple and all(map(layout.is_label, data["roots"])) and type(data["repair"]) is bool)
    _check(type(data["noted"]) is float)
    if data["kind"] == ARTIFACT:
        _check(layout.is_digest(data["name"]) and layout.is_label(data["program"]))
    else:
        _check(data["kind"] in layout.RECORD_KINDS and layout.is_label(data["name"]))
    values: dict[str, Any] = data
    return Pending(**values)


def _check(holds: bool) -> None:
    if not holds:
        raise DamagedRecord("a field of it is not what a note holds")


__all__ = ["ARTIFACT", "SPOOL", "Pending", "artifacts", "done", "note", "pending"]
