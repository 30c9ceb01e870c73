"""What a move has to do: of the artifacts that were chosen, which the destination lacks, and how two places differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from precast.artifact_store.moving.place import Holding, Place, RecordName, Unlistable
from precast.artifact_store.moving.selection import Selection


@dataclass(frozen=True)
class Plan:
    """`wanted`: to be delivered; `unsigned`: there already, without a signature that the source has; `there`: there already;
    `others`: artifacts of the source that were not chosen.
    """

    wanted: tuple[Holding, ...]
    unsigned: tuple[Holding, ...]
    there: tuple[Holding, ...]
    records: tuple[RecordName, ...]
    others: int

    @property
    def chosen(self) -> int:
        return len(self.wanted) + len(self.unsigned) + len(self.there)

    @property
    def size(self) -> int:
        """Bytes of what is to be delivered, blobs that several artifacts share counted for each."""
        return sum(holding.size for holding in self.wanted)


def plan(source: Place, destination: Place, selection: Selection) -> Plan:
    """Compare the two places. What the destination has under the same id stays as it is, for both serve the same calls; but another build
    that its policy refuses, so that nobody who trusts as it does would be served, is replaced. Raises StoreError.
    """
    wanted, unsigned, there = [], [], []
    chosen, others = _chosen(source, selection)
    have = {holding.name: holding for holding in destination.holdings_of({holding.program_key for holding in chosen})}
    for holding in chosen:
        if (known := have.get(holding.name)) is None or not destination.whole(known):
            wanted.append(holding)
        elif known.checksum == holding.checksum and not holding.signers <= known.signers:
            unsigned.append(holding)
        elif known.checksum != holding.checksum and not destination.accepts(known):
            wanted.append(holding)
        else:
            there.append(holding)
    records = set(source.records()) - set(destination.records()) if chosen else set()
    return Plan(tuple(wanted), tuple(unsigned), tuple(there), tuple(sorted(records)), others)


def _chosen(place: Place, selection: Selection) -> tuple[list[Holding], int]:
    """What a place has of the selection, in order, and how many others."""
    try:
        every = list(place.holdings())
    except Unlistable:
        if not selection.keys():
            raise
        every = list(place.holdings_of(selection.keys()))
    chosen = [holding for holding in every if selection.accepts(holding)]
    parts = {part for holding in chosen for part in holding.parts}
    while selection.build is not None:  # what a chosen program runs in between is chosen, too
        more = [holding for holding in every if holding not in chosen and holding.program_key in parts and selection.accepts_part(holding)]
        if not more:
            break
        chosen += more
        parts = {part for holding in more for part in holding.parts}
    return sorted(chosen, key=lambda holding: holding.name), len(every) - len(chosen)


def by_program(holdings: Iterable[Holding]) -> dict[str, list[Holding]]:
    """Program key -> its artifacts, in order."""
    found: dict[str, list[Holding]] = defaultdict(list)
    for holding in sorted(holdings, key=lambda holding: holding.name):
        found[holding.program_key].append(holding)
    return dict(found)


@dataclass(frozen=True)
class Change:
    """An artifact that both places have, with different content. `code`: whether what executes differs, or what is noted about the
    build.
    """

    here: Holding
    there: Holding

    @property
    def code(self) -> bool:
        return dict(self.here.blobs) != dict(self.there.blobs)


@dataclass(frozen=True)
class Difference:
    """`here`, `there`: artifacts that only the one has; `changed`: that both have, with different content; `equal`: how many are equal."""

    here: tuple[Holding, ...]
    there: tuple[Holding, ...]
    changed: tuple[Change, ...]
    equal: int
    records_here: tuple[RecordName, ...] = ()
    records_there: tuple[RecordName, ...] = ()

    @property
    def none(self) -> bool:
        """Whether both serve the same calls with the same code: what is noted about a build may differ."""
        return not (self.here or self.there or any(change.code for change in self.changed))


def difference(first: Place, second: Place, selection: Selection) -> Difference:
    """How two places differ in what was chosen. Raises StoreError."""
    one = {holding.name: holding for holding in _chosen(first, selection)[0]}
    two = {holding.name: holding for holding in _chosen(second, selection)[0]}
    both = sorted(one.keys() & two.keys())
    changed = [Change(one[name], two[name]) for name in both if one[name].checksum != two[name].checksum]
    records_one, records_two = set(first.records()), set(second.records())
    return Difference(
        tuple(one[name] for name in sorted(one.keys() - two.keys())),
        tuple(two[name] for name in sorted(two.keys() - one.keys())),
        tuple(changed),
        len(both) - len(changed),
        tuple(sorted(records_one - records_two)),
        tuple(sorted(records_two - records_one)),
    )
