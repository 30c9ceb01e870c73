"""What lies on a remote tier, for whoever looks after it: artifacts with their uses, pins, objects, and what nothing names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from precast.artifact_store.format.errors import RecordError, StoreError
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.local.machine_uses import Uses, added
from precast.artifact_store.maintenance.index import Entry
from precast.artifact_store.maintenance.pins import NOTE_LIMIT, PROGRAM, Pin, Pinned, pin_of
from precast.artifact_store.maintenance.policy import total_size
from precast.artifact_store.remote import layout, program_index, usage_report
from precast.artifact_store.remote.endpoint import Garbled, Listed, Unsupported
from precast.artifact_store.remote.program_index import ProgramIndex
from precast.artifact_store.remote.remote import Remote
from precast.artifact_store.remote.remote_record import RemoteRecord

log = logging.getLogger("precast.store")


@dataclass(frozen=True)
class Named:
    """What the index objects and the records of a remote name. `objects`: digests of stored bytes; `unread`: what could not be read, with
    the reason, and may name anything.
    """

    indexes: dict[str, ProgramIndex]
    objects: frozenset[str]
    unread: dict[str, str]

    @property
    def artifacts(self) -> list[tuple[str, program_index.Entry]]:
        """Program keys with the artifacts of each."""
        return [(key, entry) for key, index in self.indexes.items() for entry in index.entries]


def named(remote: Remote) -> Named:
    """Read every index object and every record. Raises StoreError where the endpoint lists nothing, EndpointError where it is silent."""
    keys = sorted(key for name in _names(remote, layout.PROGRAMS) if (key := layout.key_of(name.name)) is not None)
    records = [name.name for name in _names(remote, layout.RECORDS)]
    unread: dict[str, str] = {}
    found = remote.workers.run([partial(_index, remote, key, unread) for key in keys])
    indexes = {index.program_key: index for index in found if index is not None}
    objects = {item.stored for index in indexes.values() for entry in index.entries for item in entry.objects}
    for stored in remote.workers.run([partial(_record_objects, remote, name, unread) for name in records]):
        objects |= stored
    return Named(indexes, frozenset(objects), unread)


def _index(remote: Remote, key: str, unread: dict[str, str]) -> ProgramIndex | None:
    try:
        return remote.index(key)
    except Garbled as error:
        unread[layout.program_name(key)] = str(error)
        return None


def _record_objects(remote: Remote, name: str, unread: dict[str, str]) -> set[str]:
    try:
        data = remote.endpoint.get(name, layout.MAX_INDEX)
        return set() if data is None else {blob.stored for blob in RemoteRecord.from_bytes(data, name).blobs}
    except (Garbled, RecordError) as error:
        unread[name] = str(error)
        return set()


def objects(remote: Remote) -> dict[str, Listed]:
    """Every object that lies there, by the digest of its bytes; what has another name is left out. Raises as `named`."""
    found = {listed.name.rpartition("/")[2]: listed for listed in _names(remote, layout.OBJECTS)}
    return {digest: listed for digest, listed in found.items() if _is_object(digest, listed.name)}


def _is_object(digest: str, name: str) -> bool:
    try:
        return layout.object_name(digest) == name
    except ValueError:
        return False


def uses(remote: Remote) -> dict[str, Uses]:
    """How often and when last artifacts were used, over all machines that told."""
    total: dict[str, Uses] = {}
    for counts in usage_report.read_all(remote.endpoint).values():
        total = added(total, counts)
    return total


def entries(there: Named, used: dict[str, Uses]) -> list[Entry]:
    """The artifacts as policies of pruning look at them. Sizes are those on the remote, compressed; blobs go by their stored digests."""
    return [
        Entry(
            artifact_id=entry.artifact_id,
            program_key=key,
            program_name=there.indexes[key].program_name or key,
            target=entry.target,
            versions=entry.versions,
            manifest_size=entry.manifest.packed,
            blobs={blob.stored: blob.packed for blob in entry.blobs},
            guards=0,
            created=entry.made,
            last_use=max(entry.made, one.last),
            hits=one.hits,
            counted=one.last,
        )
        for key, entry in there.artifacts
        for one in (used.get(entry.artifact_id, Uses(0, 0.0)),)
    ]


# -- pins


def pins(remote: Remote) -> list[Pin]:
    """All pins, by name. Raises as `named`: where they cannot be listed nothing may be removed."""
    names = [listed.name for listed in _names(remote, layout.PINS)]
    found = remote.workers.run([partial(_pin, remote, name) for name in sorted(names)])
    return [pin for pin in found if pin is not None]


def _pin(remote: Remote, name: str) -> Pin | None:
    try:
        data = remote.endpoint.get(name, 1 << 16)
        said = unpack(data, name) if data is not None else None
    except (Garbled, RecordError) as error:
        log.info("%s: %s: %s; it holds all the same", remote.place, name, error)
        said = None
    return pin_of(name.removeprefix(layout.PINS), said)


def pin(remote: Remote, made: Pin) -> None:
    """Pin an artifact or a program. Raises EndpointError."""
    remote.endpoint.put(_pin_name(made), pack({"note": made.note[:NOTE_LIMIT], "by": made.by, "made": made.made}))


def unpin(remote: Remote, gone: Iterable[Pin]) -> None:
    """Take pins away. Raises EndpointError."""
    for one in gone:
        remote.endpoint.remove(_pin_name(one))


def _pin_name(one: Pin) -> str:
    return layout.pin_name(one.artifact_id) if one.artifact_id else f"{layout.PINS}{PROGRAM}{one.program_key}"


def pinned(remote: Remote) -> Pinned:
    """What is pinned now. Raises as `pins`."""
    return Pinned(pins(remote))


# -- figures


@dataclass(frozen=True)
class RemoteStats:
    """Sizes in bytes on the remote, compressed; times in unix seconds. `unnamed`: objects that no index and no record names."""

    programs: int
    artifacts: int
    size: int
    saved: int
    hits: int
    never_used: int
    machines: int
    by_target: dict[str, int]
    objects: int
    objects_size: int
    unnamed: int
    unnamed_size: int
    missing: int
    pins: int
    oldest: float | None
    newest: float | None
    last_use: float | None
    unread: dict[str, str]


def stats(remote: Remote) -> RemoteStats:
    """Figures of a remote. Raises StoreError and EndpointError as `named`."""
    there, told, lying = named(remote), usage_report.read_all(remote.endpoint), objects(remote)
    used: dict[str, Uses] = {}
    for counts in told.values():
        used = added(used, counts)
    found = entries(there, used)
    size = total_size(found)
    unnamed = [listed.size for digest, listed in lying.items() if digest not in there.objects]
    return RemoteStats(
        programs=len({entry.program_key for entry in found}),
        artifacts=len(found),
        size=size,
        saved=sum(entry.size for entry in found) - size,
        hits=sum(entry.hits for entry in found),
        never_used=sum(entry.hits == 0 for entry in found),
        machines=len(told),
        by_target=dict(sorted(Counter(entry.target for entry in found).items())),
        objects=len(lying),
        objects_size=sum(listed.size for listed in lying.values()),
        unnamed=len(unnamed),
        unnamed_size=sum(unnamed),
        missing=len(there.objects - lying.keys()),
        pins=len(pins(remote)),
        oldest=min((entry.created for entry in found), default=None),
        newest=max((entry.created for entry in found), default=None),
        last_use=max((entry.last_use for entry in found if entry.hits), default=None),
        unread=there.unread,
    )


def _names(remote: Remote, prefix: str) -> list[Listed]:
    try:
        return list(remote.endpoint.names(prefix))
    except Unsupported as error:
        raise StoreError(
            f"{remote.place} lists nothing, so that what is in it can be neither shown nor pruned from here: let the service limit its "
            f"size or its objects' age by itself"
        ) from error


__all__ = ["Named", "RemoteStats", "entries", "named", "objects", "pin", "pinned", "pins", "stats", "unpin", "uses"]
