"""Which artifacts other machines used: those that serve from a copy, or from a store that they cannot write, say it in a file or a remote.

What a machine says are totals, how often and when last by artifact, so that what is said twice counts once. They are kept in
`index/machines/<machine>` and added to the uses that this store counted itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.local import usage
from precast.artifact_store.tiers.folder import TEMPORARY_PREFIX, Folder, read_file

log = logging.getLogger("precast.store")
MAGIC = "precast-uses"
FORMAT = 1
MACHINES = "machines"
MOST = 200_000
"""Artifacts that one machine may name."""


class Uses(NamedTuple):
    """How often an artifact was used, and when last (unix seconds)."""

    hits: int
    last: float


Counts = Mapping[str, Uses]


def is_machine(name: str) -> bool:
    """Whether a machine may be known by this name."""
    return layout.is_label(name)


def from_lines(lines: Iterable[tuple[str, int]]) -> dict[str, Uses]:
    """Totals of uses as they are noted one by one."""
    found: dict[str, Uses] = {}
    for artifact_id, moment in lines:
        before = found.get(artifact_id, Uses(0, 0.0))
        found[artifact_id] = Uses(before.hits + 1, max(before.last, float(moment)))
    return found


def later(one: Counts, other: Counts) -> dict[str, Uses]:
    """Of two totals of one machine what is more: totals only grow."""
    nothing = Uses(0, 0.0)
    pairs = {name: (one.get(name, nothing), other.get(name, nothing)) for name in one.keys() | other.keys()}
    return {name: Uses(max(a.hits, b.hits), max(a.last, b.last)) for name, (a, b) in pairs.items()}


def added(one: Counts, other: Counts) -> dict[str, Uses]:
    """Both together: of different machines, or what came since."""
    nothing = Uses(0, 0.0)
    pairs = {name: (one.get(name, nothing), other.get(name, nothing)) for name in one.keys() | other.keys()}
    return {name: Uses(a.hits + b.hits, max(a.last, b.last)) for name, (a, b) in pairs.items()}


def to_bytes(counts: Counts) -> bytes:
    """The totals of one machine as they are kept and sent."""
    return pack([MAGIC, FORMAT, {name: [uses.hits, uses.last] for name, uses in counts.items()}], "uses")


def from_bytes(data: bytes, where: str) -> dict[str, Uses]:
    """Raises DamagedRecord for anything else."""
    content = unpack(data, where)
    if type(content) is not tuple or len(content) != 3 or content[:2] != (MAGIC, FORMAT) or type(content[2]) is not dict:
        raise DamagedRecord(f"{where}: no uses of a machine")
    if len(content[2]) > MOST:
        raise DamagedRecord(f"{where}: names {len(content[2])} artifacts, and {MOST} at most are expected")
    found: dict[str, Uses] = {}
    for name, uses in content[2].items():
        if not layout.is_digest(name) or type(uses) is not tuple or [type(part) for part in uses] != [int, float]:
            raise DamagedRecord(f"{where}: expected how often and when last for each artifact")
        if not (0 <= uses[0] < 1 << 53 and 0 <= uses[1] < 1e12):
            raise DamagedRecord(f"{where}: a count or a time that cannot be")
        found[name] = Uses(*uses)
    return found


def keep(root: Path, machine: str, counts: Counts) -> bool:
    """Keep what a machine says, in the store whose root this is; whether any of it was news. Raises OSError, and ValueError for a name that
    is no machine's.
    """
    if not layout.is_label(machine):
        raise ValueError(f"machine {machine!r}: use up to 128 letters, digits, '_', '.', '+', '-', not starting with '.'")
    usage.make_index(root)
    known = kept(root).get(machine, {})
    total = later(known, counts)
    if total == known:
        return False
    Folder(root).put(_name(machine), to_bytes(total))
    return True


def kept(root: Path) -> dict[str, dict[str, Uses]]:
    """What is kept, by machine. What is damaged is left out, logged."""
    found: dict[str, dict[str, Uses]] = {}
    try:
        names = sorted(os.listdir(root / layout.INDEX / MACHINES))
    except (FileNotFoundError, NotADirectoryError):
        return found
    for name in names:
        if layout.is_label(name) and not name.startswith(TEMPORARY_PREFIX):
            try:
                found[name] = from_bytes(read_file(root / _name(name)), _name(name))
            except (OSError, DamagedRecord) as error:
                log.warning("%s: what machine %s used is not counted: %s; import it again", root, name, error)
    return found


def together(root: Path) -> dict[str, Uses]:
    """The totals over all machines that are kept."""
    total: dict[str, Uses] = {}
    for counts in kept(root).values():
        total = added(total, counts)
    return total


def _name(machine: str) -> str:
    return f"{layout.INDEX}/{MACHINES}/{machine}"
