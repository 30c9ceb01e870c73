"""Pins: artifacts and programs that no pruning takes, as Nix's roots are. Files under `pins/`, so that they outlive the index and travel
with copies of the store.

The name alone pins: `pins/<artifact id>` or `pins/program.<program key>`. The content, a small msgpack map, says who pinned it, when, and
why; where it is damaged the pin holds all the same, and only its note is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, StoreError
from precast.artifact_store.format.msgpack import Data, pack, unpack
from precast.artifact_store.remote import spool
from precast.artifact_store.store import Store
from precast.artifact_store.tiers.disk_errors import cure
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX, Folder, read_file
from precast.artifact_store.tiers.owner import user_name

PROGRAM = "program."
"""Begins the name of a pin that holds for a whole program."""
NOTE_LIMIT = 500


@dataclass(frozen=True)
class Pin:
    """One pin: of an artifact (`artifact_id`), or of every artifact of a program (`program_key`). `made` in unix seconds, or 0."""

    artifact_id: str
    program_key: str
    note: str = ""
    by: str = ""
    made: float = 0.0

    @property
    def name(self) -> str:
        return f"{layout.PINS}/{self.artifact_id or PROGRAM + self.program_key}"


class Pinned:
    """What is pinned in a store: `holds` asks for one artifact. `also`: ids of what has other reasons to stay, for `spares`."""

    def __init__(self, pins: Collection[Pin] = (), also: Collection[str] = ()) -> None:
        self.artifacts = {pin.artifact_id for pin in pins if pin.artifact_id}
        self.programs = {pin.program_key for pin in pins if not pin.artifact_id}
        self.also = frozenset(also)

    @property
    def names(self) -> set[str]:
        """Ids and keys, all together."""
        return self.artifacts | self.programs

    def holds(self, program_key: str, artifact_id: str) -> bool:
        """Whether it is pinned."""
        return artifact_id in self.artifacts or program_key in self.programs

    def spares(self, program_key: str, artifact_id: str) -> bool:
        """Whether it stays, for whatever reason."""
        return artifact_id in self.also or self.holds(program_key, artifact_id)

    def sparing(self, artifact_ids: Collection[str]) -> Pinned:
        """The same, and these stay, too."""
        more = Pinned((), self.also | frozenset(artifact_ids))
        more.artifacts, more.programs = self.artifacts, self.programs
        return more


def pins(store: Store) -> list[Pin]:
    """All pins of the store, by name. Raises StoreError where they cannot be listed: then nothing may be removed."""
    try:
        names = sorted(os.listdir(store.path(layout.PINS)))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"which artifacts are pinned is not known: {layout.PINS}/ {error.strerror}; {cure(error, store.root)}") from error
    return [pin for name in names if not name.startswith(TEMPORARY_PREFIX) and (pin := _read(store, name)) is not None]


def pinned(store: Store) -> Pinned:
    """What is pinned now; what is still to be sent to a remote stays, too. Raises StoreError as `pins`."""
    return Pinned(pins(store), spool.artifacts(store.root))


def pin(store: Store, artifact_id: str = "", program_key: str = "", note: str = "") -> Pin:
    """Pin an artifact, or a program. Raises StoreError where the store cannot be written, ValueError for what is no id or key."""
    made = Pin(artifact_id, program_key, note[:NOTE_LIMIT], user_name(os.geteuid()), time.time())
    if not (layout.is_digest(artifact_id) if artifact_id else layout.is_label(program_key)):
        raise ValueError(f"{artifact_id or program_key!r} is neither an artifact's id nor a program's key")
    _check(store)
    try:
        Folder(store.root).put(made.name, pack({"note": made.note, "by": made.by, "made": made.made}))
    except OSError as error:
        raise StoreError(f"cannot write {made.name} in {store.root}: {error.strerror or error}; {cure(error, store.root)}") from error
    return made


def unpin(store: Store, pin: Pin) -> bool:
    """Take a pin away; whether there was one. Raises StoreError where the store cannot be written."""
    _check(store)
    try:
        store.path(pin.name).unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StoreError(f"cannot remove {pin.name} in {store.root}: {error.strerror or error}; {cure(error, store.root)}") from error
    return True


def _check(store: Store) -> None:
    if store.problem or store.readonly:
        raise StoreError(store.problem or f"the store at {store.root} was opened read-only; nothing was pinned or unpinned")


def _read(store: Store, name: str) -> Pin | None:
    try:
        found = unpack(read_file(store.path(f"{layout.PINS}/{name}")), name)
    except (OSError, DamagedRecord):
        found = None
    return pin_of(name, found)


def pin_of(name: str, content: Data) -> Pin | None:
    """The pin with this name, whatever its content is; None for a name that pins nothing."""
    program = name.removeprefix(PROGRAM) if name.startswith(PROGRAM) else ""
    if not (layout.is_label(program) if program else layout.is_digest(name)):
        return None
    said = content if isinstance(content, dict) else {}
    note, by, made = said.get("note"), said.get("by"), said.get("made")
    return Pin(
        artifact_id="" if program else name,
        program_key=program,
        note=note if type(note) is str else "" if said else "(its note cannot be read)",
        by=by if type(by) is str else "",
        made=made if type(made) is float else 0.0,
    )
