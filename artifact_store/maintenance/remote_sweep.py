"""Pruning a remote tier: mark and sweep, beside readers that fetch and writers that publish.

Artifacts are taken out of their program's index object first, by compare and swap, and only as they were when the policy chose them.
Objects that nothing names go later:

* Whoever read the index before has to be able to fetch what it named, and a writer sends objects before it names them. So an object that
  nothing names is first *noted* (`v1/condemned`), and goes in a later sweep, when it was noted for as long as the grace period and was not
  sent again meanwhile. Only the sweeper's own clock counts.
* Right before objects go everything is read again, so that what was named meanwhile stays.
* Right after, everything is read once more: an artifact that was published in between and names what has gone is taken out of the index, so
  that it is a miss, and is sent again by whoever compiles it next.

While an index object or a record cannot be read, no object goes: it may name any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from precast.artifact_store.format.errors import DamagedRecord, StoreError
from precast.artifact_store.format.layout import is_digest
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.maintenance import remote_list
from precast.artifact_store.maintenance.garbage import GRACE
from precast.artifact_store.maintenance.index import Entry as Listing
from precast.artifact_store.maintenance.pins import Pinned
from precast.artifact_store.maintenance.policy import Policy, Removal, plan, total_size
from precast.artifact_store.maintenance.remote_list import Named
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.compress import compress, expand_within
from precast.artifact_store.remote.endpoint import Garbled, Listed
from precast.artifact_store.remote.index_update import change
from precast.artifact_store.remote.program_index import Entry, ProgramIndex
from precast.artifact_store.remote.remote import Remote

log = logging.getLogger("precast.store")

CONDEMNED = f"{layout.VERSION}/condemned"
"""The object that says since when nothing names which objects: digest -> (unix seconds, the service's time of the object)."""
STALE_LEASE = 86400.0
STALE_USAGE = 400 * 86400.0
"""Seconds after which a machine's uses are no reason any more to keep anything."""
Condemned = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Swept:
    """What pruning a remote did, or with `dry_run` would do. Sizes in bytes as they lie there.

    `waiting`: objects that nothing names and that are to stay for the grace period, until `due` (unix seconds) the last of them.
    `unread`: index objects and records that cannot be read, for which no object goes. `lost`: artifacts that were taken out again, since
    objects of them had gone.
    """

    removed: tuple[Removal, ...]
    objects: int
    freed: int
    kept: int
    pinned: int
    size_before: int
    used: int
    targets: tuple[str, ...]
    waiting: int
    waiting_size: int
    due: float
    others: tuple[str, ...]
    unread: dict[str, str]
    lost: tuple[str, ...]
    dry_run: bool


def prune(remote: Remote, policy: Policy, *, dry_run: bool = False, now: float | None = None, grace: float = GRACE) -> Swept:
    """Take out of the indexes what `policy` says, then sweep. Raises StoreError and EndpointError; nothing is half-visible then."""
    now = time.time() if now is None else now
    there, held = remote_list.named(remote), remote_list.pinned(remote)
    found = remote_list.entries(there, remote_list.uses(remote))
    return _carry_out(remote, there, plan(found, policy, now, held), held, found, now, grace, dry_run)


def take_out(
    remote: Remote, artifact_ids: Collection[str], *, dry_run: bool = False, now: float | None = None, grace: float = GRACE
) -> Swept:
    """The same with these artifacts. Raises StoreError where one of them is pinned: then nothing is removed."""
    now = time.time() if now is None else now
    there, held = remote_list.named(remote), remote_list.pinned(remote)
    found = remote_list.entries(there, {})
    going = [Removal(entry, "asked for") for entry in found if entry.artifact_id in artifact_ids]
    if spared := [removal.entry for removal in going if held.holds(removal.entry.program_key, removal.entry.artifact_id)]:
        raise StoreError(f"nothing was removed: artifact {spared[0].artifact_id[:12]} is pinned on {remote.place}")
    return _carry_out(remote, there, going, held, found, now, grace, dry_run)


def _carry_out(
    remote: Remote,
    there: Named,
    going: Sequence[Removal],
    held: Pinned,
    found: Sequence[Listing],
    now: float,
    grace: float,
    dry_run: bool,
) -> Swept:
    if not dry_run:
        if not remote.writable:
            raise StoreError(f"{remote.place} is used read-only here (mode=ro); nothing was pruned")
        _withdraw(remote, there, going)
    gone = {removal.entry.artifact_id for removal in going}
    lying = remote_list.objects(remote)
    marked = _without(there, gone) if dry_run else remote_list.named(remote)
    due, waiting = _condemn(remote, lying, marked, now, grace)
    others = _stale(remote, now)
    lost: tuple[str, ...] = ()
    if not dry_run:
        again = remote_list.named(remote)  # what was published since the objects were listed
        due = {} if again.unread else {digest: listed for digest, listed in due.items() if digest not in again.objects}
        remote.workers.run([partial(remote.endpoint.remove, listed.name) for listed in due.values()])
        for name in others:
            remote.endpoint.remove(name)
        lost = _withdraw_lost(remote, due.keys())
        _note(remote, {digest: since for digest, since in waiting.items() if digest not in again.objects})
    return Swept(
        removed=tuple(going),
        objects=len(due),
        freed=sum(listed.size for listed in due.values()),
        kept=len(found) - len(going),
        pinned=sum(held.holds(entry.program_key, entry.artifact_id) for entry in found),
        size_before=total_size(found),
        used=sum(entry.hits > 0 for entry in found),
        targets=tuple(sorted({entry.target for entry in found})),
        waiting=len(waiting),
        waiting_size=sum(lying[digest].size for digest in waiting),
        due=max((since + grace for since, _ in waiting.values()), default=0.0),
        others=tuple(others),
        unread=marked.unread,
        lost=lost,
        dry_run=dry_run,
    )


def _withdraw(remote: Remote, there: Named, going: Sequence[Removal]) -> None:
    """Take artifacts out of their indexes, unless they were published anew since they were chosen."""
    chosen: dict[str, dict[str, float]] = {}
    for removal in going:
        chosen.setdefault(removal.entry.program_key, {})[removal.entry.artifact_id] = removal.entry.created

    def out_of(key: str) -> bool:
        def without(index: ProgramIndex) -> ProgramIndex | None:
            gone = [entry.artifact_id for entry in index.entries if chosen[key].get(entry.artifact_id) == entry.made]
            return index.without(gone) if gone else None

        return change(remote.endpoint, key, without)

    remote.workers.run([partial(out_of, key) for key in chosen])


def _without(there: Named, gone: Collection[str]) -> Named:
    """What would be named if these artifacts were gone; objects of records stay."""
    of_artifacts = {item.stored for _, entry in there.artifacts for item in entry.objects}
    staying = {item.stored for _, entry in there.artifacts if entry.artifact_id not in gone for item in entry.objects}
    return Named(there.indexes, frozenset((there.objects - of_artifacts) | staying), there.unread)


def _condemn(remote: Remote, lying: dict[str, Listed], marked: Named, now: float, grace: float) -> tuple[dict[str, Listed], Condemned]:
    """Of the objects that nothing names: those that may go, and since when the others are noted."""
    if marked.unread:
        return {}, {}
    noted = _noted(remote)
    due: dict[str, Listed] = {}
    waiting: Condemned = {}
    for digest, listed in lying.items():
        if digest in marked.objects:
            continue
        since, seen = noted.get(digest, (now, listed.modified))
        if seen != listed.modified or since > now:  # sent again, or noted by a clock that was ahead
            since = now
        if now - since >= grace:
            due[digest] = listed
        else:
            waiting[digest] = (since, listed.modified)
    return due, waiting


def _noted(remote: Remote) -> Condemned:
    data = remote.endpoint.get(CONDEMNED, layout.MAX_INDEX)
    if data is None:
        return {}
    try:
        found = unpack(expand_within(data, layout.MAX_INDEX, CONDEMNED), CONDEMNED)
        if type(found) is not dict:
            raise DamagedRecord(f"{CONDEMNED}: expected a map")
    except (DamagedRecord, Garbled) as error:
        log.warning("%s: %s; the grace period of what nothing names begins anew", remote.place, error)
        return {}
    return {name: (float(value[0]), float(value[1])) for name, value in found.items() if is_digest(name) and _pair(value)}


def _pair(value: object) -> bool:
    return type(value) is tuple and len(value) == 2 and all(type(part) in (int, float) for part in value)


def _note(remote: Remote, waiting: Condemned) -> None:
    """Two sweepers that note at the same time overwrite one another: what is noted by neither then waits longer."""
    if waiting:
        remote.endpoint.put(CONDEMNED, compress(pack({digest: list(since) for digest, since in waiting.items()})))
    else:
        remote.endpoint.remove(CONDEMNED)


def _stale(remote: Remote, now: float) -> list[str]:
    """Leases of the dead, and uses told by machines that are long gone."""
    leases = [listed.name for listed in remote.endpoint.names(layout.LEASES) if now - listed.modified > STALE_LEASE]
    return leases + [listed.name for listed in remote.endpoint.names(layout.USAGE) if now - listed.modified > STALE_USAGE]


def _withdraw_lost(remote: Remote, removed: Collection[str]) -> tuple[str, ...]:
    """Take artifacts out that name objects which have gone and are not back."""
    if not removed:
        return ()
    lost: list[str] = []
    for key, index in remote_list.named(remote).indexes.items():
        broken = {entry.artifact_id for entry in index.entries if _lacks(remote, entry, removed)}
        if broken:

            def without(index: ProgramIndex, broken: Collection[str] = broken) -> ProgramIndex | None:
                gone = [entry.artifact_id for entry in index.entries if entry.artifact_id in broken and _lacks(remote, entry, removed)]
                return index.without(gone) if gone else None

            if change(remote.endpoint, key, without):
                lost += sorted(broken)
                log.warning(
                    "%s: %d artifacts of %s were published while objects of them went; they are taken out", remote.place, len(broken), key
                )
    return tuple(lost)


def _lacks(remote: Remote, entry: Entry, removed: Collection[str]) -> bool:
    return any(item.stored in removed and not remote.endpoint.has(layout.object_name(item.stored)) for item in entry.objects)


__all__ = ["CONDEMNED", "Swept", "prune", "take_out"]
