"""Small named records beside the artifacts: measured choices, the native runtime, refusals, images that a driver made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from precast.artifact_store.entries import Entries
from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, RecordError
from precast.artifact_store.format.msgpack import Data, digest, pack, unpack
from precast.artifact_store.format.origin import MADE_HERE
from precast.artifact_store.tiers.tier import Tier
from precast.artifact_store.trust.trusted import Policy, Trusted, admit_record

if TYPE_CHECKING:
    from precast.artifact_store.trust.signatures import Signature, Signer

Record = dict[str, Data]
_MAGIC = "precast-record-1"


class NamedRecords:
    """The records of one store, by kind and name (`layout.RECORD_KINDS`)."""

    def __init__(self, entries: Entries, policy: Policy) -> None:
        self._entries = entries
        self._policy = policy
        self._own: set[str] = set()  # checksums of the records that this process made and put

    def get(self, kind: str, name: str) -> Record | None:
        """The record; None where there is none, or a damaged one (logged, and quarantined)."""
        found = self._read(layout.record_name(kind, name))
        return found[0] if found is not None else None

    def trusted(self, kind: str, name: str) -> Trusted[Record] | None:
        """The same, for whoever executes blobs that the record names. Raises Untrusted."""
        file = layout.record_name(kind, name)
        found = self._read(file)
        if found is None:
            return None
        record, checksum = found
        if checksum in self._own:
            return admit_record(record, kind, name, checksum, MADE_HERE, self._policy)  # the very bytes that this process made
        origin = self._entries.origin(file)
        signatures = self.signatures(kind, name, checksum) if self._policy.asks(origin) else ()
        return admit_record(record, kind, name, checksum, origin, self._policy, signatures)

    def names(self, kind: str) -> list[str]:
        """Names of the records of one kind."""
        files = (name.rpartition("/")[2] for name in self._entries.names(kind) if name.endswith(layout.MANIFEST_SUFFIX))
        names = (file.removesuffix(layout.MANIFEST_SUFFIX) for file in files)
        return [name for name in names if layout.is_label(name)]

    def signatures(self, kind: str, name: str, checksum: str) -> tuple[Signature, ...]:
        """Those that are kept of the record with this checksum."""
        from precast.artifact_store import signature_files

        return signature_files.kept(self._entries, layout.record_name(kind, name), checksum)

    def put(
        self,
        kind: str,
        name: str,
        record: Mapping[str, Data],
        blobs: Mapping[str, bytes],
        signatures: tuple[Signature, ...] | None = None,
    ) -> None:
        """Keep a record with its blobs, which its field "blobs" has to name. Raises StoreError and ValueError.

        `signatures`: those that came with it; None for a record that this process made, which is signed where a key is configured.
        """
        from precast.artifact_store import signature_files
        from precast.artifact_store.trust.signatures import record_statement

        content = pack(dict(record), f"{kind}/{name}")
        named = set(record.get("blobs", ()))
        if not all(layout.is_digest(blob) for blob in named):
            raise ValueError(f"{kind}/{name}: 'blobs' must be a list of digests")
        for blob_digest, data in blobs.items():
            if blob_digest not in named or digest(data) != blob_digest:
                raise ValueError(f"{kind}/{name}: blob {blob_digest[:12]}… is not named in the record's 'blobs', or does not match")

        file, checksum = layout.record_name(kind, name), digest(content)
        given = signature_files.signed_here(record_statement(kind, name, checksum)) if signatures is None else signatures
        if signatures is None:
            self._own.add(checksum)

        def put(tier: Tier) -> None:
            for blob_digest, data in blobs.items():
                tier.put_new(layout.blob_name(blob_digest), data)
            signature_files.keep(self._entries, tier, file, checksum, given)
            tier.put(file, _file(content))

        self._entries.write(put, f"{kind}/{name}")

    def file(self, kind: str, name: str) -> tuple[bytes, Record, str] | None:
        """The file's bytes, the record, and its checksum."""
        file = layout.record_name(kind, name)
        found, data = self._read(file), self._entries.read(file)
        return (data, *found) if found is not None and data is not None else None

    def checksum(self, kind: str, name: str) -> str:
        """The checksum of a record's content, which signatures cover; empty where there is no such record."""
        found = self._read(layout.record_name(kind, name))
        return found[1] if found is not None else ""

    def sign(self, kind: str, name: str, signer: Signer) -> tuple[Signature, ...]:
        """Put a signature beside a record; all that are there now, none where there is no such record. Raises StoreError."""
        from precast.artifact_store import signature_files
        from precast.artifact_store.trust.signatures import record_statement

        file, checksum = layout.record_name(kind, name), self.checksum(kind, name)
        if not checksum:
            return ()
        given = [signer.sign(record_statement(kind, name, checksum))]
        self._entries.write(
            lambda tier: signature_files.keep(self._entries, tier, file, checksum, given), f"the signature of {kind}/{name}"
        )
        return self.signatures(kind, name, checksum)

    def _read(self, file: str) -> tuple[Record, str] | None:
        """A record and its checksum."""
        data = self._entries.read(file)
        if data is None:
            return None
        try:
            return parse(data, file)
        except RecordError as error:
            self._entries.quarantine(file, str(error))
            return None


def pack_record(record: Mapping[str, Data], where: str) -> bytes:
    """The file of a record."""
    return _file(pack(dict(record), where))


def _file(content: bytes) -> bytes:
    return pack([_MAGIC, digest(content), content])


def parse_record(data: bytes, where: str) -> Record:
    """The map in a named record's file; raises DamagedRecord."""
    return parse(data, where)[0]


def parse(data: bytes, where: str) -> tuple[Record, str]:
    """The same, and the checksum of the content, which signatures cover."""
    outer = unpack(data, where)
    if type(outer) is not tuple or [type(part) for part in outer] != [str, str, bytes] or outer[0] != _MAGIC:
        raise DamagedRecord(f"{where}: not a precast record")
    if digest(outer[2]) != outer[1]:
        raise DamagedRecord(f"{where}: checksum mismatch")
    record = unpack(outer[2], where)
    blobs = record.get("blobs", ()) if type(record) is dict else None
    if type(blobs) is not tuple or not all(map(layout.is_digest, blobs)):
        raise DamagedRecord(f"{where}: expected a map whose 'blobs' are digests")
    return record, outer[1]
