"""A named record as it lies on a remote: the record's file, the objects of its blobs, and signatures, in one compressed document."""

from __future__ import annotations

from dataclasses import dataclass

from precast.artifact_store.format.errors import DamagedRecord
from precast.artifact_store.format.msgpack import pack, unpack
from precast.artifact_store.named_records import parse
from precast.artifact_store.remote import layout
from precast.artifact_store.remote.compress import compress, expand_within
from precast.artifact_store.remote.program_index import StoredObject, signatures, stored_object
from precast.artifact_store.trust.signatures import Signature, record_statement

MAGIC = "precast-remote-record"
FORMAT = 1


@dataclass(frozen=True)
class RemoteRecord:
    """`file`: as the local store keeps it; `checksum`: of its content, which signatures cover."""

    file: bytes
    checksum: str
    blobs: tuple[StoredObject, ...]
    signatures: tuple[Signature, ...] = ()

    def statement(self, kind: str, name: str) -> bytes:
        """What its signatures have to cover."""
        return record_statement(kind, name, self.checksum)

    def to_bytes(self) -> bytes:
        """As it lies on the remote."""
        signed = [[signature.key, signature.value] for signature in self.signatures]
        return compress(pack([MAGIC, FORMAT, self.file, [list(blob) for blob in self.blobs], signed], "record"))

    @staticmethod
    def from_bytes(data: bytes, where: str) -> RemoteRecord:
        """Raises DamagedRecord for anything but a well-formed record, Garbled for what is compressed otherwise."""
        content = unpack(expand_within(data, layout.MAX_INDEX, where), where)
        try:
            if type(content) is not tuple or len(content) != 5 or content[:2] != (MAGIC, FORMAT) or type(content[2]) is not bytes:
                raise DamagedRecord("no record of a format that this precast reads")
            _, _, file, blobs, signed = content
            if type(blobs) is not tuple or len(blobs) > layout.MAX_BLOBS:
                raise DamagedRecord("its blobs are no list")
            record, checksum = parse(file, where)
            found = tuple(stored_object(blob, layout.MAX_BLOB) for blob in blobs)
            if {blob.raw for blob in found} != set(record.get("blobs", ())):
                raise DamagedRecord("it names other blobs than the record in it")
            return RemoteRecord(file, checksum, found, signatures(signed))
        except DamagedRecord as error:
            raise DamagedRecord(f"{where}: {error}") from error


__all__ = ["RemoteRecord"]
