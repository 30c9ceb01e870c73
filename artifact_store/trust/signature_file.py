"""Signatures as bytes: what lies beside a manifest or a record (`….sig`), and stands in bundles and indexes.

A canonical msgpack array `["precast-signatures", 1, checksum, [[key id, signature], …]]`. The checksum says what they are of, so that those
of an artifact that was built again are not taken for damaged ones; it is no part of what makes them hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, FutureFormat
from precast.artifact_store.format.msgpack import Data, pack, unpack
from precast.artifact_store.trust.judge import MOST_SIGNATURES
from precast.artifact_store.trust.keys import SIGNATURE_BYTES, is_key_id
from precast.artifact_store.trust.signatures import Signature

MAGIC, FORMAT = "precast-signatures", 1
LARGEST = 16384


def to_data(signatures: Iterable[Signature]) -> list[list[Data]]:
    """As they stand in a larger document, each key's once, in the order of the keys."""
    return [[key, value] for key, value in sorted({one.key: one.value for one in signatures}.items())]


def from_data(data: Data, where: str) -> tuple[Signature, ...]:
    """The signatures in such a list. Raises DamagedRecord."""
    if type(data) is not tuple or len(data) > MOST_SIGNATURES:
        raise DamagedRecord(f"{where}: expected a list of at most {MOST_SIGNATURES} signatures")
    for item in data:
        if (
            type(item) is not tuple
            or len(item) != 2
            or not is_key_id(item[0])
            or type(item[1]) is not bytes
            or len(item[1]) != SIGNATURE_BYTES
        ):
            raise DamagedRecord(f"{where}: a signature is a key's id and {SIGNATURE_BYTES} bytes")
    return tuple(Signature(key, value) for key, value in data)


def pack_signatures(checksum: str, signatures: Iterable[Signature]) -> bytes:
    """The file of these signatures of a document with this checksum."""
    return pack([MAGIC, FORMAT, checksum, to_data(signatures)], "signatures")


def parse_signatures(data: bytes, where: str) -> tuple[str, tuple[Signature, ...]]:
    """Of which checksum they are, and the signatures. Raises DamagedRecord and FutureFormat."""
    if len(data) > LARGEST:
        raise DamagedRecord(f"{where}: larger than {LARGEST} bytes")
    outer = unpack(data, where)
    if type(outer) is not tuple or len(outer) < 2 or outer[0] != MAGIC or type(outer[1]) is not int or outer[1] < 1:
        raise DamagedRecord(f"{where}: no signatures of precast")
    if outer[1] > FORMAT:
        raise FutureFormat(f"{where}: signatures of format {outer[1]}, and this precast reads up to {FORMAT}; a newer precast wrote them")
    if len(outer) != 4 or not layout.is_digest(outer[2]):
        raise DamagedRecord(f"{where}: the signatures' envelope is malformed")
    return outer[2], from_data(outer[3], where)
