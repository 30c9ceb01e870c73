"""What a place is that artifacts are moved from and to: a local store, a remote tier, an image in a registry, by the same few verbs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from precast.artifact_store.format.manifest import Manifest
from precast.artifact_store.trust.signatures import Signature


@dataclass(frozen=True)
class Holding:
    """One artifact as a place lists it. `made`: when it was put there, in seconds since 1970 by that place's clock, 0 where it does not say.

    `blobs`: digest -> size; `size`: bytes of the manifest and of all blobs; `checksum`: the manifest's.
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
    """A document on its way: its bytes, whose checksum held and whose signatures the source's policy accepted, and the blobs it names."""

    content: bytes
    signatures: tuple[Signature, ...]
    blobs: Mapping[str, int]
    manifest: Manifest | None = None
    record: RecordName | None = None


class Moved(NamedTuple):
    """What one delivery cost. `sent`: bytes that went over; `spared`: bytes of content that was there already."""

    sent: int = 0
    spared: int = 0

    def plus(self, other: Moved) -> Moved:
        return Moved(self.sent + other.sent, self.spared + other.spared)


ReadBlob = Callable[[str], bytes]
"""Digest -> the bytes, compared with it. Raises StoreError."""


class Refused(Exception):
    """The place's policy does not let a document in or out, as a sentence that says what to do."""


class Place(Protocol):
    """Each verb raises StoreError for what goes wrong; `parcel` and `record` raise Refused where a trust policy says no."""

    @property
    def where(self) -> str:
        """The place as people know it, without credentials."""

    def holdings(self, keys: Collection[str] | None = None) -> Iterable[Holding]:
        """What is there; given program keys, of these alone, which needs no listing of everything."""

    def records(self) -> Iterable[RecordName]:
        """The named records that are there; none where the place cannot list them."""

    def parcel(self, holding: Holding) -> Parcel:
        """The manifest of an artifact, with its signatures."""

    def record(self, name: RecordName) -> Parcel | None:
        """A named record; None where it is not there any more."""

    def blob(self, digest: str, size: int) -> bytes:
        """The content of a blob of what the place holds, compared with its digest."""

    def deliver(self, parcel: Parcel, read: ReadBlob, told: Callable[[int], None]) -> Moved:
        """Take a document in: blobs that are not there first, the document last, so that nobody sees half of it. `told(bytes)`: so many
        bytes of its blobs are there now, sent or found there.
        """

    def sign(self, holding: Holding, signatures: tuple[Signature, ...]) -> None:
        """Add signatures to an artifact that is there."""

    def finish(self) -> Moved:
        """What remains to be done once everything was delivered (an image gets its tag)."""

    def close(self) -> None:
        """Give back connections and threads."""
