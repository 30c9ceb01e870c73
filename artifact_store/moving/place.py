"""What a place is that artifacts are moved from and to: a local store, a remote tier, an image in a registry, by the same few verbs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from precast.artifact_store.format.errors import StoreError
from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.trust.signatures import Signature


@dataclass(frozen=True)
class Holding:
    """One artifact as a place lists it. `made`: when it was put there, in seconds since 1970 by that place's clock, 0 where it does not
    say.

    `blobs`: digest -> size; `size`: bytes of the manifest and of all blobs; `checksum`: the manifest's; `signers`: ids of the keys that
    signed it; `parts`: keys of programs that this one runs in between, as far as the place knows.
    """

    program_key: str
    program_name: str
    artifact_id: str
    target: str
    made: float
    size: int
    checksum: str
    blobs: Mapping[str, int]
    signers: frozenset[str] = frozenset()
    parts: tuple[str, ...] = ()

    @property
    def name(self) -> tuple[str, str]:
        """What tells it from all others."""
        return self.program_key, self.artifact_id


class RecordName(NamedTuple):
    """A named record (`layout.RECORD_KINDS`)."""

    kind: str
    name: str


@dataclass(frozen=True)
class Parcel:
    """An artifact or a named record on its way: its checksum held, and the source's policy accepted its signatures.

    `document`: the manifest, or a record's file as a store keeps it; `blobs`: digest -> size of those that it names; `read(digest)`: the
    content of one of them, compared with it. That raises StoreError.
    """

    document: Manifest | bytes
    signatures: tuple[Signature, ...]
    blobs: Mapping[str, int]
    read: Callable[[str], bytes]


class Moved(NamedTuple):
    """What one delivery cost. `sent`: bytes that went over; `spared`: bytes of content that was there already."""

    sent: int = 0
    spared: int = 0

    def plus(self, other: Moved) -> Moved:
        return Moved(self.sent + other.sent, self.spared + other.spared)


class Unlistable(StoreError):
    """The place answers questions about a program, and lists none."""


class Refused(Exception):
    """The place's policy does not let a document in or out, as a sentence that says what to do."""


class Place(Protocol):
    """Each verb raises StoreError for what goes wrong; `parcel` and `record` raise Refused where a trust policy says no."""

    @property
    def where(self) -> str:
        """The place as people know it, without credentials."""

    def holdings(self) -> Iterable[Holding]:
        """All that is there. Raises Unlistable where the place lists nothing."""

    def holdings_of(self, keys: Collection[str]) -> Iterable[Holding]:
        """What is there of these programs, and of their parts as far as the place knows them."""

    def records(self) -> Iterable[RecordName]:
        """The named records that are there; none where the place cannot list them."""

    def whole(self, holding: Holding) -> bool:
        """Whether all blobs of an artifact that it holds are there, as far as a look at names tells."""

    def accepts(self, holding: Holding) -> bool:
        """Whether the place's policy accepts an artifact that it holds. What it does not gives way to another build of the same."""

    def parcel(self, name: Holding | RecordName) -> Parcel | None:
        """An artifact or a record, without its blobs; None where a record is not there any more."""

    def deliver(self, name: Holding | RecordName, parcel: Parcel, told: Callable[[int], None]) -> Moved:
        """Take it in: blobs that are not there first, the document last, so that nobody sees half of it. `told(bytes)`: so many bytes of
        its blobs are there now, sent or found there.
        """

    def sign(self, parcel: Parcel) -> None:
        """Add its signatures to an artifact that is there."""

    def finish(self) -> Moved:
        """What remains to be done once everything was delivered (an image gets its tag)."""

    def close(self) -> None:
        """Give back connections and threads."""
