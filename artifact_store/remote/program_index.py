"""The index object of a program on a remote: which artifacts it has, and all that is needed to fetch them, in one small document.

It is msgpack, `["precast-index", 1, program key, name, entries, related]`, compressed. What it says is not believed: signatures in it are
compared with the statement about the artifact, and what is fetched on its word with the manifest, which the signature covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from precast.artifact_store.format import layout
from precast.artifact_store.format.errors import DamagedRecord, FutureFormat
from precast.artifact_store.format.manifest import Manifest, Versions
from precast.artifact_store.format.msgpack import Data, digest, pack, unpack
from precast.artifact_store.remote import layout as remote_layout
from precast.artifact_store.remote.compress import compress, expand_within
from precast.artifact_store.trust.signatures import Signature, manifest_statement

MAGIC = "precast-index"
FORMAT = 1


class StoredObject(NamedTuple):
    """Content with digest `raw` and `size` bytes, which lies on the remote as `packed` compressed bytes with the digest `stored`."""

    raw: str
    size: int
    stored: str
    packed: int


@dataclass(frozen=True)
class Entry:
    """One artifact. `checksum`: its manifest's, which signatures cover; `made`: when it was published, in seconds since 1970 by the
    publisher's clock.
    """

    artifact_id: str
    target: str
    versions: Versions
    checksum: str
    manifest: StoredObject
    blobs: tuple[StoredObject, ...]
    signatures: tuple[Signature, ...] = ()
    made: float = 0.0

    @property
    def objects(self) -> tuple[StoredObject, ...]:
        """All that lies on the remote for it."""
        return (self.manifest, *self.blobs)

    @property
    def size(self) -> int:
        """Bytes that fetching all of it takes."""
        return sum(item.packed for item in self.objects)

    def statement(self, program_key: str) -> bytes:
        """What its signatures have to cover."""
        return manifest_statement(program_key, self.artifact_id, self.checksum)

    @staticmethod
    def of(manifest: Manifest, stored: StoredObject, blobs: Iterable[StoredObject], signatures: Sequence[Signature], made: float) -> Entry:
        """The entry of an artifact whose objects lie on the remote."""
        return Entry(
            manifest.artifact_id,
            manifest.target,
            manifest.versions,
            manifest.checksum,
            stored,
            tuple(blobs),
            tuple(signatures),
            made,
        )


@dataclass(frozen=True)
class ProgramIndex:
    """What a remote has of a program. `related`: keys of the programs that are its parts (what follows a graph break, what is called
    between graphs), so that who fetches it can fetch them at the same time.
    """

    program_key: str
    program_name: str = ""
    entries: tuple[Entry, ...] = ()
    related: tuple[str, ...] = ()

    def entry(self, artifact_id: str) -> Entry | None:
        """Of the artifact with this id."""
        return next((entry for entry in self.entries if entry.artifact_id == artifact_id), None)

    def stored(self) -> dict[str, StoredObject]:
        """What lies on the remote already, by the digest of its content."""
        return {item.raw: item for entry in self.entries for item in entry.objects}

    def with_entry(self, entry: Entry) -> ProgramIndex:
        """With this one, in place of any other of the same artifact; the oldest are left out where there are too many."""
        others = [other for other in self.entries if other.artifact_id != entry.artifact_id]
        kept = sorted((*others, entry), key=lambda e: e.made)[-remote_layout.MAX_ARTIFACTS :]
        return replace(self, entries=tuple(sorted(kept, key=lambda e: e.artifact_id)))

    def without(self, artifact_ids: Iterable[str]) -> ProgramIndex:
        """Without these artifacts."""
        gone = set(artifact_ids)
        return replace(self, entries=tuple(entry for entry in self.entries if entry.artifact_id not in gone))

    def with_related(self, keys: Iterable[str]) -> ProgramIndex:
        """With further parts."""
        related = sorted({*self.related, *keys} - {self.program_key})
        return replace(self, related=tuple(related[: remote_layout.MAX_RELATED]))

    def to_bytes(self) -> bytes:
        """As it lies on the remote."""
        entries = [_entry_data(entry) for entry in self.entries]
        return compress(pack([MAGIC, FORMAT, self.program_key, self.program_name, entries, self.related], "index"))

    @staticmethod
    def from_bytes(data: bytes, program_key: str) -> ProgramIndex:
        """Raises DamagedRecord for anything but a well-formed index of this program, FutureFormat for a newer precast's, and Garbled for
        what is compressed otherwise.
        """
        where = remote_layout.program_name(program_key)
        content = unpack(expand_within(data, remote_layout.MAX_INDEX, where), where)
        if type(content) is not tuple or len(content) < 2 or content[0] != MAGIC or type(content[1]) is not int:
            raise DamagedRecord(f"{where}: no index of a program")
        if content[1] > FORMAT:
            raise FutureFormat(f"{where}: index format {content[1]}, and this precast reads up to {FORMAT}; a newer precast wrote it")
        try:
            _, _, key, name, entries, related = content
            if key != program_key:
                raise DamagedRecord(f"it belongs to another program, {str(key)[:200]!r}")
            _check(type(entries) is tuple and len(entries) <= remote_layout.MAX_ARTIFACTS, "entries")
            _check(type(related) is tuple and len(related) <= remote_layout.MAX_RELATED and all(map(layout.is_label, related)), "related")
            found = tuple(_entry(item) for item in entries)
            _check(len({entry.artifact_id for entry in found}) == len(found), "entries (one artifact twice)")
            return ProgramIndex(program_key, _text(name, "name"), found, related)
        except (DamagedRecord, ValueError, TypeError, KeyError) as error:
            raise DamagedRecord(f"{where}: {error}") from error


# -- data


def _entry_data(entry: Entry) -> dict[str, Data]:
    return {
        "id": entry.artifact_id,
        "target": entry.target,
        "versions": asdict(entry.versions),
        "checksum": entry.checksum,
        "manifest": list(entry.manifest),
        "blobs": [list(blob) for blob in entry.blobs],
        "signatures": [[signature.key, signature.value] for signature in entry.signatures],
        "made": entry.made,
    }


def _entry(data: Data) -> Entry:
    _check(type(data) is dict and data.keys() == _FIELDS, "an entry")
    versions = data["versions"]
    _check(type(versions) is dict and versions.keys() == {"lowering", "torch", "python", "compiler"}, "versions")
    blobs = data["blobs"]
    _check(type(blobs) is tuple and len(blobs) <= remote_layout.MAX_BLOBS, "blobs")
    found = tuple(stored_object(blob, remote_layout.MAX_BLOB) for blob in blobs)
    _check(sum(blob.size for blob in found) <= remote_layout.MAX_ARTIFACT, "blobs (too large together)")
    _check(layout.is_digest(data["id"]) and layout.is_digest(data["checksum"]), "id or checksum")
    _check(type(data["made"]) in (int, float) and 0 <= data["made"] < 1e12, "made")
    python = versions["python"]
    return Entry(
        data["id"],
        _text(data["target"], "target"),
        Versions(
            _text(versions["lowering"], "lowering"),
            _text(versions["torch"], "torch"),
            None if python is None else _text(python, "python"),
            _text(versions["compiler"], "compiler"),
        ),
        data["checksum"],
        stored_object(data["manifest"], remote_layout.MAX_MANIFEST),
        found,
        signatures(data["signatures"]),
        float(data["made"]),
    )


_FIELDS = {"id", "target", "versions", "checksum", "manifest", "blobs", "signatures", "made"}


def stored_object(data: Data, limit: int) -> StoredObject:
    """Raises DamagedRecord for what names no object, or one whose content has more than `limit` bytes."""
    _check(type(data) is tuple and len(data) == 4, "an object")
    raw, size, stored, packed = data
    _check(layout.is_digest(raw) and layout.is_digest(stored), "an object's digest")
    _check(type(size) is int and 0 <= size <= limit, "an object's size")
    _check(type(packed) is int and 0 < packed <= size + size // 64 + 1024, "an object's compressed size")
    return StoredObject(raw, size, stored, packed)


def signatures(data: Data) -> tuple[Signature, ...]:
    """Raises DamagedRecord for what are no signatures."""
    _check(type(data) is tuple and len(data) <= remote_layout.MAX_SIGNATURES, "signatures")
    for item in data:
        _check(type(item) is tuple and [type(part) for part in item] == [str, bytes], "a signature")
        _check(len(item[0]) == 32 and len(item[1]) == 64 and layout.is_digest(item[0] * 2), "a signature")
    return tuple(Signature(key, value) for key, value in data)


def _text(value: Any, what: str) -> str:
    _check(type(value) is str and len(value) <= remote_layout.MAX_TEXT and value.isprintable(), what)
    return str(value)


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise DamagedRecord(f"{what}: not what an index holds")


def packed_object(content: bytes) -> tuple[StoredObject, bytes]:
    """Content as it would lie on a remote, and the bytes that would lie there."""
    packed = compress(content)
    return StoredObject(digest(content), len(content), digest(packed), len(packed)), packed


__all__ = ["Entry", "ProgramIndex", "StoredObject", "packed_object", "signatures", "stored_object"]
